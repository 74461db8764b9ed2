//! Plans of all members carried out by a model: mail by sender and receiver, no tags and no time.

pub(super) mod jobs;

use std::collections::{HashMap, VecDeque};
use std::ops::Range;

use super::algorithms::{
    all_gather, all_reduce, all_to_all, broadcast, gather, reduce, reduce_scatter, scan, scatter,
};
use super::plan::{Block, Draft, Into, Plan, Step, cut};

/// The blocks of one member; none that has not been written.
struct Member {
    plan: Plan,
    blocks: Vec<Option<Vec<u8>>>,
    at: usize,
    /// Receives that were started, in order.
    receives: Vec<(usize, Range<Block>)>,
}

type Write<'a> = &'a dyn Fn(&mut Draft, usize, usize);

type Mail = HashMap<(usize, usize), VecDeque<Vec<u8>>>;

impl Member {
    fn new(plan: Plan, input: &[u8]) -> Member {
        let mut blocks = vec![None; plan.sizes.len()];
        let mut rest = input;
        for block in &plan.input {
            let (bytes, after) = rest.split_at(plan.sizes[*block as usize]);
            blocks[*block as usize] = Some(bytes.to_vec());
            rest = after;
        }
        assert!(rest.is_empty());
        Member { plan, blocks, at: 0, receives: Vec::new() }
    }

    fn get(&self, block: Block) -> Vec<u8> {
        match self.plan.sizes[block as usize] {
            0 => Vec::new(),
            _ => self.blocks[block as usize].clone().expect("a block is written before it is read"),
        }
    }

    /// Does one step, if it can. Sends do not wait for receives, as eager messages do not.
    fn step(&mut self, me: usize, mail: &mut Mail) -> bool {
        let step = self.plan.steps.get(self.at).cloned().unwrap_or(Step::Wait);
        match step {
            Step::Send { to, blocks } => {
                let bytes = blocks.flat_map(|block| self.get(block)).collect();
                mail.entry((me, to)).or_default().push_back(bytes);
            }
            Step::Receive { from, blocks } => {
                for block in blocks.clone() {
                    self.blocks[block as usize] = None;
                }
                self.receives.push((from, blocks));
            }
            Step::Wait => {
                while let Some((from, blocks)) = self.receives.first().cloned() {
                    let Some(bytes) = mail.get_mut(&(from, me)).and_then(VecDeque::pop_front) else {
                        return false;
                    };
                    let mut rest = &bytes[..];
                    for block in blocks {
                        let (part, after) = rest.split_at(self.plan.sizes[block as usize]);
                        self.blocks[block as usize] = Some(part.to_vec());
                        rest = after;
                    }
                    assert!(rest.is_empty(), "a message is as long as its receive");
                    self.receives.remove(0);
                }
                if self.at >= self.plan.steps.len() {
                    return false;
                }
            }
            Step::Fold { lower, upper, count, into } => {
                for block in 0..count {
                    let (low, mut high) = (self.get(lower + block), self.get(upper + block));
                    concatenate(&low, &mut high);
                    let (kept, lost) = match into {
                        Into::Upper => (upper + block, None),
                        Into::Lower => (lower + block, Some(upper + block)),
                    };
                    self.blocks[kept as usize] = Some(high);
                    if let Some(lost) = lost {
                        self.blocks[lost as usize] = None;
                    }
                }
            }
            Step::Copy { from, to } => self.blocks[to as usize] = Some(self.get(from)),
        }
        self.at += 1;
        true
    }
}

/// Elements are sets of members, as two masks of 64 bits: those of the operand, and the order in which they
/// were combined as a count of inversions. A lower operand must have lower members only.
fn concatenate(lower: &[u8], upper: &mut [u8]) {
    for (lower, upper) in lower.chunks_exact(9).zip(upper.chunks_exact_mut(9)) {
        let [low, high] = [lower, &*upper].map(|bytes| u64::from_le_bytes(bytes[..8].try_into().unwrap()));
        assert_eq!(low & high, 0, "an operand is reduced once");
        let in_order = low.ilog2() < high.trailing_zeros();
        upper[..8].copy_from_slice(&(low | high).to_le_bytes());
        upper[8] |= lower[8] | u8::from(!in_order);
    }
}

/// Runs the plans of all members to their ends, and returns the outputs.
fn run(members: usize, write: impl Fn(&mut Draft), input: impl Fn(usize) -> Vec<u8>) -> Vec<Vec<u8>> {
    let mut all: Vec<Member> = (0..members)
        .map(|me| {
            let mut draft = Draft::new(me, members);
            write(&mut draft);
            Member::new(draft.plan, &input(me))
        })
        .collect();
    let mut mail = Mail::new();
    loop {
        let mut moved = false;
        for (me, member) in all.iter_mut().enumerate() {
            while member.step(me, &mut mail) {
                moved = true;
            }
        }
        if !moved {
            break;
        }
    }
    assert!(mail.values().all(VecDeque::is_empty), "every message is received");
    for member in &all {
        assert!(member.at >= member.plan.steps.len() && member.receives.is_empty(), "all steps are done");
    }
    all.iter()
        .map(|member| member.plan.output.iter().flat_map(|block| member.get(*block)).collect())
        .collect()
}

fn content(member: usize, len: usize) -> Vec<u8> {
    (0..len).map(|at| (at * 13 + member * 57 + 1) as u8).collect()
}

/// An operand of `count` elements of one member.
fn operand(member: usize, count: usize) -> Vec<u8> {
    let mut element = (1_u64 << member).to_le_bytes().to_vec();
    element.push(0);
    element.repeat(count)
}

/// `count` elements that are reduced from some members; in order if `ordered`, else in any.
fn assert_reduced(output: &[u8], members: Range<usize>, count: usize, ordered: bool) {
    assert_eq!(output.len(), count * 9);
    let mask = members.fold(0, |mask, member| mask | 1_u64 << member);
    for element in output.chunks_exact(9) {
        assert_eq!(u64::from_le_bytes(element[..8].try_into().unwrap()), mask);
        assert!(!ordered || element[8] == 0, "operands are combined in order");
    }
}

/// G-4: every algorithm that moves bytes ends, and moves them to the right places, for up to 33 members.
#[test]
fn movements() {
    for members in 1..=33_usize {
        for len in [0, 1, 5, 100] {
            let all: Vec<u8> = (0..members).flat_map(|member| content(member, len)).collect();
            let lens: Vec<usize> = (0..members).map(|member| len * (member % 3)).collect();
            let all_varied: Vec<u8> = (0..members).flat_map(|member| content(member, lens[member])).collect();
            for root in [0, members / 2, members - 1] {
                let at_root = |me: usize, bytes: &[u8]| if me == root { bytes.to_vec() } else { Vec::new() };
                for algorithm in [broadcast::binomial, broadcast::scatter_all_gather] {
                    let input = |me| at_root(me, &content(7, len));
                    let outputs = run(members, |draft| algorithm(draft, root, len), input);
                    assert!(outputs.iter().all(|output| *output == content(7, len)));
                }
                let linear = |draft: &mut Draft, root: usize, len: usize| {
                    gather::linear(draft, root, &vec![len; members], len);
                };
                let gathers: [Write<'_>; 2] = [&gather::binomial, &linear];
                for algorithm in gathers {
                    let outputs = run(members, |draft| algorithm(draft, root, len), |me| content(me, len));
                    for (me, output) in outputs.iter().enumerate() {
                        assert_eq!(*output, at_root(me, &all));
                    }
                }
                let linear = |draft: &mut Draft, root: usize, len: usize| {
                    scatter::linear(draft, root, &vec![len; members], len);
                };
                let scatters: [Write<'_>; 2] = [&scatter::binomial, &linear];
                for algorithm in scatters {
                    let outputs = run(members, |draft| algorithm(draft, root, len), |me| at_root(me, &all));
                    for (me, output) in outputs.iter().enumerate() {
                        assert_eq!(*output, content(me, len));
                    }
                }
            }
            for algorithm in [all_gather::bruck, all_gather::ring] {
                let outputs = run(members, |draft| algorithm(draft, &lens), |me| content(me, lens[me]));
                assert!(outputs.iter().all(|output| *output == all_varied));
            }
            let write =
                |draft: &mut Draft| all_to_all::pairwise(draft, &vec![len; members], &vec![len; members]);
            let part = |from: usize, to: usize| content(from * members + to, len);
            let outputs = run(members, write, |me| (0..members).flat_map(|to| part(me, to)).collect());
            for (me, output) in outputs.iter().enumerate() {
                assert_eq!(*output, (0..members).flat_map(|from| part(from, me)).collect::<Vec<_>>());
            }
        }
    }
}

/// G-5: every reduction takes each operand once, and in order unless the operation is commutative.
#[test]
fn reductions() {
    for members in 1..=33_usize {
        for count in [0, 1, 3, 70] {
            let (len, input) = (count * 9, |me| operand(me, count));
            for root in [0, members / 2, members - 1] {
                for commutative in [false, true] {
                    let write = |draft: &mut Draft| reduce::binomial(draft, root, len, commutative);
                    for (me, output) in run(members, write, input).iter().enumerate() {
                        let expected = if me == root { count } else { 0 };
                        assert_reduced(output, 0..members, expected, !commutative);
                    }
                }
            }
            type Algorithm = fn(&mut Draft, usize);
            let all: [(Algorithm, bool); 3] = [
                (all_reduce::recursive_doubling, true),
                (|draft, len| all_reduce::halving_doubling(draft, len, 9), false),
                (|draft, len| all_reduce::ring(draft, len, 9), false),
            ];
            for (write, ordered) in all {
                for output in run(members, |draft| write(draft, len), input) {
                    assert_reduced(&output, 0..members, count, ordered);
                }
            }
            let lens: Vec<usize> = (0..members).map(|member| len * (member % 3)).collect();
            let total = (0..members).map(|member| count * (member % 3)).sum();
            let outputs = run(members, |draft| reduce_scatter::direct(draft, &lens), |me| operand(me, total));
            for (me, output) in outputs.iter().enumerate() {
                assert_reduced(output, 0..members, lens[me] / 9, true);
            }
            for inclusive in [false, true] {
                let write = |draft: &mut Draft| scan::recursive_doubling(draft, len, inclusive);
                for (me, output) in run(members, write, input).iter().enumerate() {
                    let end = me + usize::from(inclusive);
                    assert_reduced(output, 0..end, if end > 0 { count } else { 0 }, true);
                }
            }
        }
    }
}

#[test]
fn cuts_have_whole_units() {
    assert_eq!(cut(10, 1, 3), [4, 3, 3]);
    assert_eq!(cut(16, 8, 3), [8, 8, 0]);
    assert_eq!(cut(17, 8, 2), [8, 9]);
    assert_eq!(cut(0, 4, 2), [0, 0]);
}
