//! A computation that goes on when a rank dies. Start it with `tautline run -n 4 --keep-going`: the last rank
//! ends halfway.
#![allow(clippy::print_stdout)]

use tautline::group::{Min, Sum};
use tautline::{Endpoint, Error};

const STEPS: usize = 100;

fn main() -> tautline::Result<()> {
    let ep = Endpoint::builder().join()?;
    let mut group = ep.world()?;
    let is_victim = ep.size() > 1 && ep.rank() + 1 == ep.size();
    // The result of each step: here, how many ranks took part in it.
    let mut results = Vec::new();
    loop {
        while results.len() < STEPS {
            if is_victim && results.len() == STEPS / 2 {
                std::process::exit(3);
            }
            let mut ranks = [1_u32];
            match group.all_reduce(&mut ranks, Sum) {
                Ok(()) => results.push(ranks[0]),
                // From now on collectives of this group fail at every member, perhaps one step later.
                Err(Error::PeerGone(..)) => break,
                Err(error) => return Err(error),
            }
        }
        // All members that are left take the same decision, whatever each of them has seen.
        let (all_done, _) = group.agree(u64::from(results.len() == STEPS))?;
        if all_done == 1 {
            break;
        }
        group = group.shrink()?;
        // Go on where the slowest of them is. (A rank that dies just here ends this program.)
        let mut least = [results.len() as u64];
        group.all_reduce(&mut least, Min)?;
        results.truncate(least[0] as usize);
    }
    if ep.rank() == 0 {
        println!("{STEPS} steps, the first by {} ranks, the last by {}", results[0], results[STEPS - 1]);
    }
    ep.close()
}
