//! Rank 0 hands out tasks, and takes results from whoever is ready: messages with tags.
#![allow(clippy::print_stdout)]

use tautline::Endpoint;
use tautline::tags::ANY;

const TASK: u32 = 1;
const RESULT: u32 = 2;
const END: u32 = 3;

fn main() -> tautline::Result<()> {
    let ep = Endpoint::builder().join()?;
    let tags = ep.tags(0);
    let mut word = vec![0; 8];
    if ep.rank() == 0 {
        let mut tasks = 0..100_u64;
        let (mut sum, mut under_way) = (0, 0);
        let mut free: Vec<u32> = (1..ep.size()).collect();
        loop {
            while let Some(worker) = free.pop() {
                match tasks.next() {
                    Some(task) => {
                        tags.send(worker, TASK, &task.to_le_bytes())?;
                        under_way += 1;
                    }
                    None => tags.send(worker, END, &[])?,
                }
            }
            if under_way == 0 {
                break;
            }
            let status = tags.receive(ANY, RESULT, &mut word)?;
            sum += u64::from_le_bytes(word[..8].try_into().expect("eight bytes"));
            under_way -= 1;
            free.push(status.source);
        }
        println!("{} workers: the squares add up to {sum}", ep.size() - 1);
    } else {
        while tags.receive(0, ANY, &mut word)?.tag == TASK {
            let task = u64::from_le_bytes(word[..8].try_into().expect("eight bytes"));
            tags.send(0, RESULT, &(task * task).to_le_bytes())?;
        }
    }
    ep.close()
}
