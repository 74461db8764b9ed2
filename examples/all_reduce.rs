//! Collectives of all ranks, and of the even and odd ones.
#![allow(clippy::print_stdout)]

use tautline::Endpoint;
use tautline::group::{Max, Sum};

fn main() -> tautline::Result<()> {
    let ep = Endpoint::builder().join()?;
    let world = ep.world()?;
    let mut total = [f64::from(ep.rank() + 1), 1.0];
    world.all_reduce(&mut total, Sum)?;
    // Even and odd ranks each find their greatest.
    let half = world.split(Some(ep.rank() % 2), 0)?.expect("every rank has a colour");
    let mut greatest = [ep.rank()];
    half.all_reduce(&mut greatest, Max)?;
    if ep.rank() == 0 {
        println!("{} ranks, sum {}, greatest even rank {}", total[1], total[0], greatest[0]);
    }
    world.barrier()?;
    ep.close()
}
