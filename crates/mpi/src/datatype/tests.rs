//! Random datatypes against a naive model: the type map as a list of elements, made copy by copy as the
//! standard defines it.

use std::sync::Arc;

use super::array::GridDimension;
use super::basic::Predefined;
use super::*;
use crate::random::Random;

/// A type map in full.
#[derive(Clone)]
struct Model {
    map: Vec<(i64, Basic)>,
    lower: i64,
    upper: i64,
    marked: bool,
    align: i64,
}

impl Model {
    fn predefined(handle: Datatype) -> Model {
        let map = match predefined(handle).unwrap() {
            Predefined::One(basic) => vec![(0, basic)],
            Predefined::Pair(one, two) => {
                vec![(0, one), (i64::from(one.size.max(two.align)), two)]
            }
        };
        let align = map.iter().map(|(_, basic)| i64::from(basic.align)).max().unwrap();
        let end = map.iter().map(|(at, basic)| at + i64::from(basic.size)).max().unwrap();
        Model { map, lower: 0, upper: end.next_multiple_of_i64(align), marked: false, align }
    }

    fn extent(&self) -> i64 {
        self.upper - self.lower
    }

    /// Copies of models at displacements.
    fn copies(list: &[(i64, &Model)], is_struct: bool) -> Model {
        let mut made = Model { map: vec![], lower: 0, upper: 0, marked: false, align: 1 };
        let mut bounds: Vec<(i64, i64, bool)> = vec![];
        for (at, model) in list {
            made.map.extend(model.map.iter().map(|(place, basic)| (at + place, *basic)));
            made.align = made.align.max(model.align);
            if model.marked || !model.map.is_empty() {
                bounds.push((at + model.lower, at + model.upper, model.marked));
            }
        }
        made.marked = bounds.iter().any(|bound| bound.2);
        bounds.retain(|bound| bound.2 == made.marked);
        made.lower = bounds.iter().map(|bound| bound.0).min().unwrap_or(0);
        made.upper = bounds.iter().map(|bound| bound.1).max().unwrap_or(0);
        if is_struct && !made.marked {
            made.upper = made.lower + made.extent().next_multiple_of_i64(made.align);
        }
        made
    }

    fn block(at: i64, length: i64, model: &Model) -> Vec<(i64, &Model)> {
        (0..length).map(|index| (at + index * model.extent(), model)).collect()
    }

    /// The bytes of `count` copies in order, as places relative to the origin.
    fn places(&self, count: i64) -> Vec<i64> {
        let copies = (0..count).flat_map(|copy| self.map.iter().map(move |(at, basic)| (copy, at, basic)));
        copies
            .flat_map(|(copy, at, basic)| {
                let begin = copy * self.extent() + at;
                begin..begin + i64::from(basic.size)
            })
            .collect()
    }
}

trait NextMultiple {
    fn next_multiple_of_i64(self, of: i64) -> i64;
}

impl NextMultiple for i64 {
    fn next_multiple_of_i64(self, of: i64) -> i64 {
        self + (of - self.rem_euclid(of)) % of
    }
}

const LEAVES: [Datatype; 8] =
    [c::BYTE, c::SHORT, c::INT, c::DOUBLE, c::C_DOUBLE_COMPLEX, c::DOUBLE_INT, c::SHORT_INT, c::INTEGER16];

/// A random datatype and its model.
fn random_type(random: &mut Random, depth: u32) -> (Arc<Type>, Model) {
    if depth == 0 || random.below(8) == 0 {
        let handle = LEAVES[random.below(LEAVES.len())];
        return (Arc::new(Type::predefined(handle).unwrap()), Model::predefined(handle));
    }
    let (old, model) = random_type(random, depth - 1);
    let extent = model.extent();
    let (count, length) = (random.within(0, 4), random.within(0, 3));
    let displacements = |random: &mut Random, of: i64| -> Vec<i64> {
        (0..count).map(|_| random.within(-9, 9) * of).collect()
    };
    let (made, model) = match random.below(11) {
        0 => (Type::contiguous(count, &old), Model::copies(&Model::block(0, count, &model), false)),
        kind @ 1..=2 => {
            let stride = random.within(-5, 5);
            let bytes = if kind == 1 { stride * extent } else { stride };
            let blocks: Vec<_> =
                (0..count).flat_map(|block| Model::block(block * bytes, length, &model)).collect();
            let make = if kind == 1 { Type::vector } else { Type::hvector };
            (make(count, length, stride, &old), Model::copies(&blocks, false))
        }
        kind @ 3..=4 => {
            let at = displacements(random, 1);
            let lengths: Vec<i64> = (0..count).map(|_| random.within(0, 3)).collect();
            let unit = if kind == 3 { extent } else { 1 };
            let blocks = at.iter().zip(&lengths);
            let blocks: Vec<_> =
                blocks.flat_map(|(at, length)| Model::block(at * unit, *length, &model)).collect();
            (Type::indexed(&lengths, &at, kind == 4, &old), Model::copies(&blocks, false))
        }
        kind @ 5..=6 => {
            let at = displacements(random, 1);
            let unit = if kind == 5 { extent } else { 1 };
            let blocks: Vec<_> = at.iter().flat_map(|at| Model::block(at * unit, length, &model)).collect();
            (Type::indexed_block(length, &at, kind == 6, &old), Model::copies(&blocks, false))
        }
        7 => {
            let members: Vec<_> = (0..count).map(|_| random_type(random, depth - 1)).collect();
            let at = displacements(random, 3);
            let lengths: Vec<i64> = (0..count).map(|_| random.within(0, 3)).collect();
            let types: Vec<_> = members.iter().map(|(made, _)| Arc::clone(made)).collect();
            let blocks = members.iter().zip(at.iter().zip(&lengths));
            let blocks: Vec<_> =
                blocks.flat_map(|((_, model), (at, length))| Model::block(*at, *length, model)).collect();
            (Type::structure(&lengths, &at, &types), Model::copies(&blocks, true))
        }
        8 => {
            let (lower, extent) = (random.within(-20, 20), random.within(-20, 60));
            let resized = Model { lower, upper: lower + extent, marked: true, ..model };
            (Type::resized(&old, lower, extent), resized)
        }
        9 => random_subarray(random, &old, &model),
        _ => random_darray(random, &old, &model),
    };
    (Arc::new(made.unwrap()), model)
}

fn order_of(random: &mut Random) -> c_int {
    if random.below(2) == 0 { c::ORDER_C } else { c::ORDER_FORTRAN }
}

/// The model of an array whose elements are included if all their indices are.
fn array_model(model: &Model, sizes: &[i64], order: c_int, includes: impl Fn(usize, i64) -> bool) -> Model {
    let volume: i64 = sizes.iter().product();
    let mut list = vec![];
    for element in 0..volume {
        let mut rest = element;
        let mut dimensions: Vec<usize> = (0..sizes.len()).collect();
        if order == c::ORDER_C {
            dimensions.reverse();
        }
        let all = dimensions.iter().all(|dimension| {
            let index = rest % sizes[*dimension];
            rest /= sizes[*dimension];
            includes(*dimension, index)
        });
        if all {
            list.push((element * model.extent(), model));
        }
    }
    let made = Model::copies(&list, false);
    Model { lower: 0, upper: volume * model.extent(), marked: true, ..made }
}

fn random_subarray(random: &mut Random, old: &Arc<Type>, model: &Model) -> (Result<Type>, Model) {
    let dimensions = random.within(1, 3);
    let sizes: Vec<i64> = (0..dimensions).map(|_| random.within(1, 4)).collect();
    let subsizes: Vec<i64> = sizes.iter().map(|size| random.within(1, *size)).collect();
    let starts: Vec<i64> =
        sizes.iter().zip(&subsizes).map(|(size, length)| random.within(0, size - length)).collect();
    let order = order_of(random);
    let made = Type::subarray(&sizes, &subsizes, &starts, order, old);
    let model = array_model(model, &sizes, order, |dimension, index| {
        (starts[dimension]..starts[dimension] + subsizes[dimension]).contains(&index)
    });
    (made, model)
}

fn random_darray(random: &mut Random, old: &Arc<Type>, model: &Model) -> (Result<Type>, Model) {
    let dimensions = random.within(1, 3);
    let grid: Vec<GridDimension> = (0..dimensions).map(|_| random_dimension(random)).collect();
    let order = order_of(random);
    let processes: c_int = grid.iter().map(|of| of.processes).product();
    let rank = random.below(processes as usize) as c_int;
    let made = Type::darray(processes, rank, &grid, order, old);
    let sizes: Vec<i64> = grid.iter().map(|of| of.size).collect();
    let model = array_model(model, &sizes, order, |dimension, index| {
        let below: c_int = grid[dimension + 1..].iter().map(|of| of.processes).product();
        let of = grid[dimension];
        let mine = i64::from(rank / below % of.processes);
        let default = of.argument == c::DISTRIBUTE_DFLT_DARG;
        let (processes, argument) = (i64::from(of.processes), i64::from(of.argument));
        match of.distribution {
            c::DISTRIBUTE_NONE => true,
            c::DISTRIBUTE_BLOCK if default => index / ((of.size + processes - 1) / processes) == mine,
            c::DISTRIBUTE_BLOCK => index / argument == mine,
            _ => index / (if default { 1 } else { argument }) % processes == mine,
        }
    });
    (made, model)
}

fn random_dimension(random: &mut Random) -> GridDimension {
    let size = random.within(1, 6);
    let processes = random.within(1, 3) as c_int;
    let default = random.below(2) == 0;
    let (distribution, argument) = match random.below(3) {
        0 => (c::DISTRIBUTE_NONE, c::DISTRIBUTE_DFLT_DARG),
        1 => {
            let least = (size + i64::from(processes) - 1) / i64::from(processes);
            (c::DISTRIBUTE_BLOCK, random.within(least, 7) as c_int)
        }
        _ => (c::DISTRIBUTE_CYCLIC, random.within(1, 3) as c_int),
    };
    let processes = if distribution == c::DISTRIBUTE_NONE { 1 } else { processes };
    let argument = if default { c::DISTRIBUTE_DFLT_DARG } else { argument };
    GridDimension { size, distribution, argument, processes }
}

/// The program's memory around an origin.
struct Memory {
    bytes: Vec<u8>,
    origin: i64,
}

impl Memory {
    fn around(places: &[i64], random: &mut Random) -> Memory {
        let first = places.iter().min().copied().unwrap_or(0).min(0);
        let last = places.iter().max().copied().unwrap_or(0).max(0);
        Memory { bytes: random.bytes((last - first + 1) as usize), origin: -first }
    }

    fn message(&mut self, count: i64, of: &Arc<Type>) -> Message {
        let at = self.bytes.as_mut_ptr().wrapping_offset(self.origin as isize);
        Message::new(at.cast(), count, of).unwrap()
    }

    fn at(&mut self, place: i64) -> &mut u8 {
        &mut self.bytes[(self.origin + place) as usize]
    }
}

fn check(seed: u64) {
    let mut random = Random::new(seed);
    let depth = random.within(0, 3) as u32;
    let (made, model) = random_type(&mut random, depth);
    // Keeps the model small; such cases are rare.
    if model.map.len() > 4000 {
        return;
    }
    let bytes = |list: &[(i64, Basic)]| list.iter().map(|(_, basic)| u64::from(basic.size)).sum::<u64>();
    assert_eq!(made.size(), bytes(&model.map), "size, seed {seed}");
    let bounds = made.bounds();
    assert_eq!((bounds.lower, bounds.upper), (model.lower, model.upper), "bounds, seed {seed}");
    let begin = model.map.iter().map(|(at, _)| *at).min().unwrap_or(0);
    let end = model.map.iter().map(|(at, basic)| at + i64::from(basic.size)).max().unwrap_or(0);
    assert_eq!(bounds.true_extent(), (begin, end - begin), "true extent, seed {seed}");
    for elements in [0, 1, model.map.len() / 2, model.map.len()] {
        let elements = elements.min(model.map.len());
        let bytes = bytes(&model.map[..elements]);
        assert_eq!(made.bytes_of(elements as u64), Some(bytes), "bytes, seed {seed}");
        assert_eq!(made.elements_in(bytes), Some(elements as u64), "elements, seed {seed}");
    }

    let count = random.within(0, 3);
    let places = model.places(count);
    let mut memory = Memory::around(&places, &mut random);
    let expected: Vec<u8> = places.iter().map(|place| *memory.at(*place)).collect();
    let message = memory.message(count, &made);
    assert_eq!(message.size(), expected.len() as u64, "size of the message, seed {seed}");
    // SAFETY: the memory covers all places of the model, which were just compared with the type's bounds.
    unsafe {
        assert_eq!(message.to_vec(), expected, "packed, seed {seed}");
        let from = random.below(expected.len() + 1);
        let mut piece = vec![0; random.below(expected.len() + 2)];
        let packed = message.pack(from as u64, &mut piece);
        assert_eq!(piece[..packed], expected[from..from + packed], "piece, seed {seed}");
        assert_eq!(packed, piece.len().min(expected.len() - from), "length of the piece, seed {seed}");
    }

    let mut model_memory = Memory { bytes: memory.bytes.clone(), origin: memory.origin };
    let data = random.bytes(places.len());
    for (place, byte) in places.iter().zip(&data) {
        *model_memory.at(*place) = *byte;
    }
    let message = memory.message(count, &made);
    let mut done = 0;
    while done < data.len() {
        let piece = &data[done..(done + 1 + random.below(70)).min(data.len())];
        // SAFETY: as above.
        done += unsafe { message.unpack(done as u64, piece) };
    }
    assert_eq!(memory.bytes, model_memory.bytes, "unpacked, seed {seed}");
}

#[test]
fn random_datatypes_are_as_the_model_says() {
    (0..20_000).for_each(check);
}

#[test]
fn a_type_of_a_billion_elements_is_small_and_quick() {
    let double = Arc::new(Type::predefined(c::DOUBLE).unwrap());
    let vector = Arc::new(Type::vector(1 << 30, 1, 2, &double).unwrap());
    assert_eq!((vector.size(), vector.extent()), (8 << 30, (16 << 30) - 8));
    let nested = Arc::new(Type::hvector(4, 1, 32 << 30, &vector).unwrap());
    let mut runs = vec![];
    nested.runs().walk(0, (20 << 30) + 12, (20 << 30) + 28, &mut |at, len| runs.push((at, len)));
    let at = (64 << 30) + (8 << 30) + 16;
    assert_eq!(runs, [(at + 4, 4), (at + 16, 8), (at + 32, 4)]);
}

#[test]
fn dense_types_become_one_run() {
    let int = Arc::new(Type::predefined(c::INT).unwrap());
    let rows = Arc::new(Type::vector(4, 6, 6, &int).unwrap());
    let whole = Arc::new(Type::subarray(&[2, 3], &[2, 3], &[0, 0], c::ORDER_C, &rows).unwrap());
    assert_eq!((rows.runs().contiguous(), whole.runs().contiguous()), (Some(96), Some(576)));
    let parts = Type::structure(&[2, 1], &[0, 8], &[Arc::clone(&int), Arc::clone(&int)]).unwrap();
    assert_eq!(parts.runs().contiguous(), Some(12));
    let regular = Type::indexed_block(1, &[0, 2, 4, 6], false, &int).unwrap();
    assert!(matches!(**regular.runs(), Node::Repeat { count: 4, stride: 8, .. }), "{:?}", regular.runs());
}

#[test]
fn what_does_not_fit_and_what_is_negative_is_refused() {
    let double = Arc::new(Type::predefined(c::DOUBLE).unwrap());
    let code = |made: Result<Type>| made.unwrap_err().code;
    assert_eq!(code(Type::contiguous(-1, &double)), c::ERR_COUNT);
    assert_eq!(code(Type::vector(2, -1, 3, &double)), c::ERR_COUNT);
    assert_eq!(code(Type::contiguous(i64::MAX / 4, &double)), c::ERR_ARG);
    assert_eq!(code(Type::vector(2, 1, i64::MAX / 4, &double)), c::ERR_ARG);
    assert_eq!(code(Type::hvector(i64::MAX / 4, 1, 0, &double)), c::ERR_COUNT);
    assert_eq!(code(Type::subarray(&[3], &[3], &[1], c::ORDER_C, &double)), c::ERR_ARG);
    assert_eq!(code(Type::subarray(&[3], &[1], &[1], 7, &double)), c::ERR_ARG);
    let block = GridDimension { size: 9, distribution: c::DISTRIBUTE_BLOCK, argument: 2, processes: 4 };
    assert_eq!(code(Type::darray(4, 0, &[block], c::ORDER_C, &double)), c::ERR_ARG);
    assert_eq!(code(Type::darray(3, 0, &[block], c::ORDER_C, &double)), c::ERR_ARG);
}
