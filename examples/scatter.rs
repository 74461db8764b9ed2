//! Header and body, each straight to its place: every rank sends rank 0 its row of a table. The handler reads
//! the header, which says which row follows, and reads the body into that row, without a buffer in between.
#![allow(clippy::print_stdout)]

use std::cell::{Cell, RefCell};
use std::rc::Rc;

use tautline::{Endpoint, Error, Message};
use zerocopy::{FromBytes, Immutable, IntoBytes};

const CELLS: usize = 100_000;

#[derive(FromBytes, IntoBytes, Immutable)]
#[repr(C)]
struct Header {
    row: u32,
    step: u32,
}

fn main() -> tautline::Result<()> {
    let table = Rc::new(RefCell::new(Vec::<Vec<u64>>::new()));
    let complete = Rc::new(Cell::new(0));
    let (rows, count) = (table.clone(), complete.clone());
    let ep = Endpoint::builder()
        .on("row", move |mut msg: Message| {
            let (rows, count) = (rows.clone(), count.clone());
            async move {
                let header: Header = msg.read().await?;
                // The row is out of the table while it is filled: other rows arrive at the same time.
                let place = rows.borrow_mut().get_mut(header.row as usize).map(std::mem::take);
                let mut row = place.ok_or_else(|| Error::other("no such row"))?;
                msg.read_into(row.as_mut_bytes()).await?;
                rows.borrow_mut()[header.row as usize] = row;
                count.set(count.get() + 1);
                Ok(())
            }
        })
        .join()?;
    table.borrow_mut().resize(ep.size() as usize, vec![0; CELLS]);
    if ep.rank() == 0 {
        ep.run_until(|| complete.get() == ep.size() - 1)?;
        let sums: Vec<u64> = table.borrow().iter().map(|row| row.iter().sum()).collect();
        println!("sums of the rows: {sums:?}");
    } else {
        let cells = vec![u64::from(ep.rank()); CELLS];
        let mut message = ep.begin(0, "row", (size_of::<Header>() + size_of_val(&cells[..])) as u64)?;
        message.value(&Header { row: ep.rank(), step: 1 })?;
        message.value(&cells[..])?;
        message.end()?;
    }
    ep.close()
}
