//! What tests send, and a serial model of every collective. Tests spend most of their own time here: this is
//! a crate of its own, built with optimization, and they are not.
#![forbid(unsafe_code)]

use tautline::group::{Call, Reduction};

/// Bytes that depend on their offset and a number.
pub fn pattern(size: usize, number: usize) -> Vec<u8> {
    (0..size).map(|i| (i * 31 + i / 251 + number * 97) as u8).collect()
}

/// Bytes that depend on a member and a call.
pub fn content(member: usize, call: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 7 + at / 250 + member * 31 + call * 101) as u8).collect()
}

/// The composition of affine maps modulo 251, two bytes each: associative, and not commutative.
pub fn compose(lower: &[u8], upper: &mut [u8]) {
    for (lower, upper) in lower.chunks_exact(2).zip(upper.chunks_exact_mut(2)) {
        let [a, b] = [lower[0], lower[1]].map(|x| u32::from(x) % 251);
        let [c, d] = [upper[0], upper[1]].map(|x| u32::from(x) % 251);
        upper[0] = (a * c % 251) as u8;
        upper[1] = ((b * c + d) % 251) as u8;
    }
}

/// The sum of each pair of bytes.
pub fn add(lower: &[u8], upper: &mut [u8]) {
    lower.iter().zip(upper).for_each(|(lower, upper)| *upper = upper.wrapping_add(*lower));
}

/// [`compose`] as a reduction.
pub fn composition() -> Reduction {
    Reduction::new(2, false, compose)
}

/// [`add`] as a reduction.
pub fn addition() -> Reduction {
    Reduction::new(1, true, add)
}

/// The reduction of the inputs of some members, in order.
pub fn folded(
    members: std::ops::Range<usize>,
    number: usize,
    len: usize,
    of: fn(&[u8], &mut [u8]),
) -> Vec<u8> {
    let mut inputs = members.map(|member| content(member, number, len));
    let first = inputs.next().unwrap();
    inputs.fold(first, |lower, mut upper| {
        of(&lower, &mut upper);
        upper
    })
}

/// A call, this member's input, and the output that a serial model has.
pub type Case = (Call, Vec<u8>, Vec<u8>);

/// All collectives of some length, as member `me` of `n` sees them.
pub fn cases(n: usize, me: usize, len: usize) -> Vec<Case> {
    let root = (len + n / 2) % n;
    let at_root = |bytes: Vec<u8>| if me == root { bytes } else { Vec::new() };
    // Different lengths, some of them zero.
    let varied = |member: usize| len * (member % 3) + member % 2;
    let lens: Vec<usize> = (0..n).map(varied).collect();
    let all = |number: usize, len: usize| (0..n).map(|m| content(m, number, len)).collect::<Vec<_>>();
    let all_varied = |number: usize| (0..n).map(|m| content(m, number, lens[m])).collect::<Vec<_>>().concat();
    let part = |bytes: &[u8], lens: &[usize]| {
        let start: usize = lens[..me].iter().sum();
        bytes[start..start + lens[me]].to_vec()
    };
    let pair = |from: usize, to: usize| (len + from * 3 + to * 5) % 17 * usize::from((from + to) % 4 != 3);
    let to_all: Vec<usize> = (0..n).map(|to| pair(me, to)).collect();
    let from_all: Vec<usize> = (0..n).map(|from| pair(from, me)).collect();
    let sent = |from: usize, to: usize, len: usize| content(from * 20 + to, 9, len);
    let even = len * 2;
    let mut cases: Vec<Case> = vec![
        (Call::Barrier, vec![], vec![]),
        (Call::Broadcast { root, len }, at_root(content(root, 1, len)), content(root, 1, len)),
        (Call::Gather { root, len }, content(me, 2, len), at_root(all(2, len).concat())),
        (
            Call::GatherVaried { root, len: varied(me), lens: lens.clone() },
            content(me, 3, varied(me)),
            at_root(all_varied(3)),
        ),
        (
            Call::Scatter { root, len },
            at_root(content(root, 4, len * n)),
            part(&content(root, 4, len * n), &vec![len; n]),
        ),
        (
            Call::ScatterVaried { root, len: varied(me), lens: lens.clone() },
            at_root(content(root, 5, lens.iter().sum())),
            part(&content(root, 5, lens.iter().sum()), &lens),
        ),
        (Call::AllGather { len }, content(me, 6, len), all(6, len).concat()),
        (Call::AllGatherVaried { lens: lens.clone() }, content(me, 7, varied(me)), all_varied(7)),
        (
            Call::AllToAll { len },
            (0..n).flat_map(|to| sent(me, to, len)).collect(),
            (0..n).flat_map(|from| sent(from, me, len)).collect(),
        ),
        (
            Call::AllToAllVaried { send: to_all.clone(), receive: from_all.clone() },
            (0..n).flat_map(|to| sent(me, to, to_all[to])).collect(),
            (0..n).flat_map(|from| sent(from, me, from_all[from])).collect(),
        ),
        // A ring with one more edge to the member after the next; in a small group to itself, or twice to
        // the same one.
        (
            Call::NeighbourGather {
                sources: vec![((me + n - 1) % n, len), ((me + n - 2 % n) % n, len)],
                destinations: vec![(me + 1) % n, (me + 2) % n],
                len,
            },
            content(me, 8, len),
            [content((me + n - 1) % n, 8, len), content((me + n - 2 % n) % n, 8, len)].concat(),
        ),
        (
            Call::NeighbourAllToAll {
                sources: vec![((me + n - 1) % n, len), ((me + n - 1) % n, even)],
                destinations: vec![((me + 1) % n, len), ((me + 1) % n, even)],
            },
            [content(me, 10, len), content(me, 11, even)].concat(),
            [content((me + n - 1) % n, 10, len), content((me + n - 1) % n, 11, even)].concat(),
        ),
    ];
    for (with, of) in [(addition(), add as fn(&[u8], &mut [u8])), (composition(), compose)] {
        let total = |number| folded(0..n, number, even, of);
        let evens: Vec<usize> = lens.iter().map(|len| len * 2).collect();
        let (sum, whole) = (evens.iter().sum(), |len| folded(0..n, 14, len, of));
        let input = |number| content(me, number, even);
        let before = if me == 0 { vec![] } else { folded(0..me, 16, even, of) };
        cases.extend([
            (Call::Reduce { root, len: even, with: with.clone() }, input(12), at_root(total(12))),
            (Call::AllReduce { len: even, with: with.clone() }, input(13), total(13)),
            (
                Call::ReduceScatter { lens: evens.clone(), with: with.clone() },
                content(me, 14, sum),
                part(&whole(sum), &evens),
            ),
            (Call::Scan { len: even, with: with.clone() }, input(15), folded(0..me + 1, 15, even, of)),
            (Call::ExclusiveScan { len: even, with }, input(16), before),
        ]);
    }
    cases
}
