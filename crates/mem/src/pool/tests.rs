use super::*;

fn pair(len: usize) -> (Pool, PoolView) {
    let pool = Pool::create(len).unwrap();
    let view = PoolView::attach(&pool.fd().try_clone_to_owned().unwrap(), pool.size()).unwrap();
    (pool, view)
}

/// S-8: the other side reads what the lender wrote, and a returned extent can be taken again.
#[test]
fn extents_are_lent_and_returned() {
    let (mut pool, view) = pair(1 << 20);
    let mut extent = pool.take(10_000).unwrap().unwrap();
    extent.fill(7);
    extent[9_999] = 8;
    let (number, at, len) = extent.location();
    assert!(view.contains(at, len) && !view.contains(at, 1 << 22) && !view.contains(u64::MAX, 2));
    pool.lend(extent);
    let mut got = vec![0; 10_000];
    view.copy_out(at as usize, &mut got);
    assert!(got[..9_999].iter().all(|b| *b == 7) && got[9_999] == 8);
    assert_eq!(pool.take(1 << 20).unwrap().map(|p| p.location()), None, "part of it is lent");
    pool.returned(number, ReturnStatus::Read).unwrap();
    assert_eq!(pool.returned(number, ReturnStatus::Read), Err(Corrupt), "returned twice");
    assert_eq!(pool.returned(u32::MAX, ReturnStatus::Read), Err(Corrupt), "never lent");
    assert!(pool.take(1 << 20).unwrap().is_some());
}

/// S-8: the other side has no way to write; memory without these seals is refused.
#[test]
fn the_other_side_cannot_write() {
    let pool = Pool::create(1 << 16).unwrap();
    let fd = pool.fd().try_clone_to_owned().unwrap();
    assert!(Map::new(&fd, pool.size(), ProtFlags::READ | ProtFlags::WRITE).is_err());
    assert!(rustix::io::write(&fd, b"x").is_err());
    assert!(rustix::fs::ftruncate(&fd, 0).is_err());
    let again = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&fd));
    let other = std::fs::OpenOptions::new().write(true).read(true).open(again).unwrap();
    assert!(Map::new(&other.into(), pool.size(), ProtFlags::READ | ProtFlags::WRITE).is_err());
    assert!(PoolView::attach(&fd, 1 << 17).unwrap_err().to_string().contains("wrong size"));
    let bare = rustix::fs::memfd_create(c"bare", MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING).unwrap();
    rustix::fs::ftruncate(&bare, 1 << 16).unwrap();
    assert!(PoolView::attach(&bare, 1 << 16).unwrap_err().to_string().contains("not sealed"));
}

/// Extents do not overlap, in whatever order they are taken and returned; in the end all memory is one range
/// again.
#[test]
fn extents_do_not_overlap() {
    let (mut pool, _view) = pair(4 << 20);
    let mut seed = 0x9e37_79b9_7f4a_7c15_u64;
    let mut next = |below: u64| {
        seed ^= seed << 13;
        seed ^= seed >> 7;
        seed ^= seed << 17;
        seed % below
    };
    let mut held: Vec<(Extent, u8)> = Vec::new();
    let mut lent: Vec<u32> = Vec::new();
    for step in 0..20_000 {
        match next(4) {
            0 | 1 => {
                let len = if next(2) == 0 { next(300) } else { next(300_000) };
                let taken = if next(3) == 0 { pool.take_part(len as usize) } else { pool.take(len as usize) };
                if let Some(mut extent) = taken.unwrap() {
                    assert!(extent.len() < PAGE || (extent.as_ptr() as usize).is_multiple_of(PAGE));
                    extent.fill(step as u8);
                    held.push((extent, step as u8));
                }
            }
            2 if !held.is_empty() => {
                let (extent, mark) = held.swap_remove(next(held.len() as u64) as usize);
                assert!(extent.iter().all(|b| *b == mark), "another extent wrote there");
                if next(2) == 0 {
                    pool.give(extent);
                } else {
                    lent.push(extent.location().0);
                    pool.lend(extent);
                }
            }
            _ if !lent.is_empty() => {
                let number = lent.swap_remove(next(lent.len() as u64) as usize);
                pool.returned(number, ReturnStatus::Read).unwrap();
            }
            _ => {}
        }
        assert!(pool.free.iter().all(|f| f.is_sorted() && f.windows(2).all(|w| w[0].0 + w[0].1 < w[1].0)));
    }
    held.into_iter().for_each(|(extent, _)| pool.give(extent));
    lent.into_iter().for_each(|number| pool.returned(number, ReturnStatus::Read).unwrap());
    assert_eq!(pool.free, [vec![(0, 4 << 20)], vec![(4 << 20, PARTS_LEN)]]);
    assert_eq!(pool.numbers.len(), MAX_EXTENTS);
}

/// The numbers are limited, and external memory takes one, too.
#[test]
fn numbers_run_out() {
    let (mut pool, _view) = pair(1 << 20);
    let elsewhere = pool.reserve_external().unwrap();
    let extents: Vec<_> = std::iter::from_fn(|| pool.take(8).unwrap()).collect();
    assert_eq!(extents.len(), MAX_LOANS - 1);
    assert!(pool.take_status(elsewhere).is_none());
    pool.returned(elsewhere, ReturnStatus::Incomplete).unwrap();
    assert_eq!(pool.take_status(elsewhere), Some(ReturnStatus::Incomplete));
    assert!(pool.reserve_external().is_some());
}

#[test]
#[should_panic = "another pool"]
fn extents_of_other_pools_are_refused() {
    let (mut a, mut b) = (Pool::create(1 << 16).unwrap(), Pool::create(1 << 16).unwrap());
    b.give(a.take(8).unwrap().unwrap());
}
