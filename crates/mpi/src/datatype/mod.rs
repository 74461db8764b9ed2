//! Datatypes: how they are made, what they cover, and how their data is packed and unpacked. Handles, names
//! and attributes of datatypes are not here.

pub mod array;
pub mod basic;
mod bounds;
pub mod external;
mod node;
mod pack;

#[cfg(test)]
mod tests;

use std::ffi::c_int;
use std::sync::{Arc, OnceLock};

use crate::constants as c;
use crate::error::{Error, Result, ensure};
use crate::foreign::Content;
use crate::handle::Datatype;
use basic::{Basic, Predefined, predefined};
pub use bounds::Bounds;
use bounds::{add, mul, natural};
use node::Node;
pub use pack::Message;

/// `MPI_LB`, which MPI 3 has removed and the ABI of MPICH still has; the value is none of the standard ABI.
pub const LOWER_MARK: Datatype = Datatype(0x2fe);
/// `MPI_UB`, likewise.
pub const UPPER_MARK: Datatype = Datatype(0x2ff);

/// `MPIX_C_FLOAT16` of the ABI of MPICH, likewise.
pub const C_HALF: Datatype = Datatype(0x2fd);

/// A datatype.
#[derive(Debug)]
pub struct Type {
    /// The handle, if the datatype is predefined.
    pub predefined: Option<Datatype>,
    /// The elements in order.
    map: Arc<Node>,
    /// The same bytes in runs; made when it is first needed, which is at the latest when it is committed.
    runs: OnceLock<Arc<Node>>,
    bounds: Bounds,
    /// How it was made.
    pub recipe: Recipe,
    /// Whether `MPI_Type_commit` was called, or it is predefined.
    committed: OnceLock<()>,
    /// The kind of pair for `MPI_MINLOC` and `MPI_MAXLOC`.
    pub pair: Option<(Basic, Basic)>,
}

/// How a datatype was made: what `MPI_Type_get_envelope` and `MPI_Type_get_contents` return.
#[derive(Debug, Default)]
pub struct Recipe {
    /// The constructor.
    pub combiner: c_int,
    /// Its integers that are no counts and displacements.
    pub integers: Vec<Content>,
    /// Its addresses.
    pub addresses: Vec<i64>,
    /// Its counts and displacements; they precede the integers, except for arrays.
    pub counts: Vec<i64>,
    /// The datatypes that it was made of.
    pub types: Vec<Arc<Type>>,
}

impl Type {
    /// The predefined datatype of a handle.
    pub fn predefined(handle: Datatype) -> Option<Type> {
        let element = |basic| Arc::new(Node::Element(basic));
        let (map, bounds, pair) = match predefined(handle)? {
            Predefined::One(basic) => (element(basic), Bounds::of(basic, 0), None),
            Predefined::Pair(one, two) => {
                let at = i64::from(one.size.next_multiple_of(two.align));
                let bounds = Bounds::of(one, 0).joined(&Bounds::of(two, at)).padded().ok()?;
                let map = Node::sequence([(0, element(one)), (at, element(two))])?;
                (map, bounds, Some((one, two)))
            }
        };
        let recipe = Recipe { combiner: c::COMBINER_NAMED, ..Recipe::default() };
        let committed = OnceLock::from(());
        Some(Type { predefined: Some(handle), map, runs: OnceLock::new(), bounds, recipe, committed, pair })
    }

    /// `MPI_LB` or `MPI_UB`: no data, only a bound of the structure that it is in.
    pub fn mark(handle: Datatype) -> Type {
        let recipe = Recipe { combiner: c::COMBINER_NAMED, ..Recipe::default() };
        let marked = (handle == LOWER_MARK, handle == UPPER_MARK);
        Type {
            predefined: Some(handle),
            map: Node::empty(),
            runs: OnceLock::new(),
            bounds: Bounds { marked, ..Bounds::EMPTY },
            recipe,
            committed: OnceLock::from(()),
            pair: None,
        }
    }

    fn made(map: Option<Arc<Node>>, bounds: Bounds, recipe: Recipe) -> Result<Type> {
        let map =
            map.ok_or_else(|| Error::new(c::ERR_COUNT, "the size of the datatype does not fit MPI_Count"))?;
        let (runs, committed) = (OnceLock::new(), OnceLock::new());
        Ok(Type { predefined: None, map, runs, bounds, recipe, committed, pair: None })
    }

    /// `MPI_Type_dup`.
    pub fn dup(old: &Arc<Type>) -> Type {
        Type {
            predefined: None,
            map: Arc::clone(&old.map),
            runs: old.runs.clone(),
            bounds: old.bounds,
            recipe: Recipe { combiner: c::COMBINER_DUP, types: vec![Arc::clone(old)], ..Recipe::default() },
            committed: old.committed.clone(),
            pair: old.pair,
        }
    }

    /// A datatype that Fortran chooses by precision and range: another one under this name.
    pub fn fortran(old: &Arc<Type>, combiner: c_int, integers: Vec<Content>) -> Type {
        let recipe = Recipe { combiner, integers, ..Recipe::default() };
        Type { predefined: old.predefined, recipe, ..Type::dup(old) }
    }

    /// `MPI_Type_contiguous`.
    pub fn contiguous(count: i64, old: &Arc<Type>) -> Result<Type> {
        let times = natural(count, "count")?;
        let extent = old.extent();
        let bounds = old.bounds.repeated(0, count, extent)?;
        let recipe = Recipe {
            combiner: c::COMBINER_CONTIGUOUS,
            counts: vec![count],
            types: vec![Arc::clone(old)],
            ..Recipe::default()
        };
        Type::made(Node::repeat(times, extent, &old.map), bounds, recipe)
    }

    /// `MPI_Type_vector`: the stride counts extents.
    pub fn vector(count: i64, length: i64, stride: i64, old: &Arc<Type>) -> Result<Type> {
        let recipe = Recipe {
            combiner: c::COMBINER_VECTOR,
            counts: vec![count, length, stride],
            types: vec![Arc::clone(old)],
            ..Recipe::default()
        };
        Type::strided(count, length, mul(stride, old.extent())?, old, recipe)
    }

    /// `MPI_Type_create_hvector`: the stride counts bytes.
    pub fn hvector(count: i64, length: i64, stride: i64, old: &Arc<Type>) -> Result<Type> {
        let recipe = Recipe {
            combiner: c::COMBINER_HVECTOR,
            counts: vec![count, length],
            addresses: vec![stride],
            types: vec![Arc::clone(old)],
            ..Recipe::default()
        };
        Type::strided(count, length, stride, old, recipe)
    }

    fn strided(count: i64, length: i64, stride: i64, old: &Arc<Type>, recipe: Recipe) -> Result<Type> {
        let (times, in_block) = (natural(count, "count")?, natural(length, "blocklength")?);
        let block = old.bounds.repeated(0, length, old.extent())?;
        let bounds = block.repeated(0, count, stride)?;
        let map = Node::repeat(in_block, old.extent(), &old.map);
        Type::made(map.and_then(|block| Node::repeat(times, stride, &block)), bounds, recipe)
    }

    /// Blocks of one datatype at displacements in bytes.
    fn blocks(
        blocks: impl Iterator<Item = Result<(i64, i64)>>,
        old: &Arc<Type>,
        recipe: Recipe,
    ) -> Result<Type> {
        let (mut parts, mut bounds) = (Vec::new(), Bounds::EMPTY);
        for block in blocks {
            let (at, length) = block?;
            let times = natural(length, "blocklength")?;
            bounds = bounds.joined(&old.bounds.repeated(at, length, old.extent())?);
            let Some(node) = Node::repeat(times, old.extent(), &old.map) else {
                return Type::made(None, bounds, recipe);
            };
            parts.push((at, node));
        }
        Type::made(Node::sequence(parts), bounds, recipe)
    }

    /// `MPI_Type_indexed` and `MPI_Type_create_hindexed`: displacements count extents or bytes.
    pub fn indexed(lengths: &[i64], at: &[i64], in_bytes: bool, old: &Arc<Type>) -> Result<Type> {
        let count = lengths.len() as i64;
        let mut recipe = Recipe { types: vec![Arc::clone(old)], ..Recipe::default() };
        recipe.counts = [&[count], lengths].concat();
        if in_bytes {
            recipe.combiner = c::COMBINER_HINDEXED;
            recipe.addresses = at.to_vec();
        } else {
            recipe.combiner = c::COMBINER_INDEXED;
            recipe.counts.extend(at);
        }
        let unit = if in_bytes { 1 } else { old.extent() };
        let blocks = at.iter().zip(lengths).map(|(at, length)| Ok((mul(*at, unit)?, *length)));
        Type::blocks(blocks, old, recipe)
    }

    /// `MPI_Type_create_indexed_block` and `MPI_Type_create_hindexed_block`.
    pub fn indexed_block(length: i64, at: &[i64], in_bytes: bool, old: &Arc<Type>) -> Result<Type> {
        let mut recipe = Recipe { types: vec![Arc::clone(old)], ..Recipe::default() };
        recipe.counts = vec![at.len() as i64, length];
        if in_bytes {
            recipe.combiner = c::COMBINER_HINDEXED_BLOCK;
            recipe.addresses = at.to_vec();
        } else {
            recipe.combiner = c::COMBINER_INDEXED_BLOCK;
            recipe.counts.extend(at);
        }
        natural(length, "blocklength")?;
        let unit = if in_bytes { 1 } else { old.extent() };
        Type::blocks(at.iter().map(|at| Ok((mul(*at, unit)?, length))), old, recipe)
    }

    /// `MPI_Type_create_struct`.
    pub fn structure(lengths: &[i64], at: &[i64], types: &[Arc<Type>]) -> Result<Type> {
        let recipe = Recipe {
            combiner: c::COMBINER_STRUCT,
            counts: [&[lengths.len() as i64], lengths].concat(),
            addresses: at.to_vec(),
            types: types.to_vec(),
            ..Recipe::default()
        };
        let (mut parts, mut bounds) = (Vec::new(), Bounds::EMPTY);
        for ((length, at), old) in lengths.iter().zip(at).zip(types) {
            let times = natural(*length, "blocklength")?;
            if times == 0 {
                continue;
            }
            bounds = bounds.joined(&old.bounds.repeated(*at, *length, old.extent())?);
            let Some(node) = Node::repeat(times, old.extent(), &old.map) else {
                return Type::made(None, bounds, recipe);
            };
            parts.push((*at, node));
        }
        Type::made(Node::sequence(parts), bounds.padded()?, recipe)
    }

    /// `MPI_Type_create_resized`.
    pub fn resized(old: &Arc<Type>, lower: i64, extent: i64) -> Result<Type> {
        let recipe = Recipe {
            combiner: c::COMBINER_RESIZED,
            addresses: vec![lower, extent],
            types: vec![Arc::clone(old)],
            ..Recipe::default()
        };
        let bounds = Bounds { lower, upper: add(lower, extent)?, marked: (true, true), ..old.bounds };
        Type::made(Some(Arc::clone(&old.map)), bounds, recipe)
    }

    /// A type that covers part of an array, whose bounds are those of the whole array.
    fn of_array(
        node: Option<Arc<Node>>,
        old: &Arc<Type>,
        data: Bounds,
        all: i64,
        recipe: Recipe,
    ) -> Result<Type> {
        let bounds = Bounds { lower: 0, upper: mul(all, old.extent())?, marked: (true, true), ..data };
        Type::made(node, bounds, recipe)
    }

    /// The number of bytes of data.
    pub fn size(&self) -> u64 {
        self.map.size()
    }

    /// The bounds.
    pub fn bounds(&self) -> &Bounds {
        &self.bounds
    }

    /// The distance from one copy to the next.
    pub fn extent(&self) -> i64 {
        self.bounds.extent()
    }

    /// Prepares it for communication.
    pub fn commit(&self) {
        self.runs();
        let _ = self.committed.set(());
    }

    /// Fails unless it may be used in communication.
    pub fn ensure_committed(&self) -> Result<()> {
        ensure(self.committed.get().is_some(), c::ERR_TYPE, || "the datatype was not committed".to_owned())
    }

    /// Whether the packed bytes of any number of copies are those in memory.
    #[inline]
    pub fn is_dense(&self) -> bool {
        self.runs().contiguous().is_some_and(|run| run.cast_signed() == self.extent())
    }

    /// The runs of bytes in order.
    fn runs(&self) -> &Arc<Node> {
        self.runs.get_or_init(|| self.map.merged())
    }

    /// The one basic type that all its elements have.
    pub fn uniform(&self) -> Option<Basic> {
        self.map.uniform()
    }

    /// The basic type or pair, if it consists of one and has its extent, as reductions need it.
    pub fn single(&self) -> Option<Predefined> {
        if let Some((value, index)) = self.pair {
            return Some(Predefined::Pair(value, index));
        }
        match *self.map {
            Node::Element(basic) if self.extent() == i64::from(basic.size) => Some(Predefined::One(basic)),
            _ => None,
        }
    }

    /// The number of whole copies in a message of so many bytes; `None` if it is no whole number.
    pub fn copies_in(&self, bytes: u64) -> Option<u64> {
        match self.size() {
            0 if bytes == 0 => Some(0),
            0 => None,
            size => bytes.is_multiple_of(size).then(|| bytes / size),
        }
    }

    /// The number of elements in a message of so many bytes; `None` if the last one is cut.
    pub fn elements_in(&self, bytes: u64) -> Option<u64> {
        match self.size() {
            0 => (bytes == 0).then_some(0),
            size => Some(bytes / size * self.map.elements() + self.map.elements_in(bytes % size)?),
        }
    }

    /// The bytes that `elements` elements take in a message.
    pub fn bytes_of(&self, elements: u64) -> Option<u64> {
        let each = self.map.elements();
        if each == 0 {
            return (elements == 0).then_some(0);
        }
        let mut bytes = (elements / each).checked_mul(self.size())?;
        let mut left = elements % each;
        self.map.walk_elements(0, &mut |_, basic| {
            if left > 0 {
                left -= 1;
                bytes += u64::from(basic.size);
            }
        });
        Some(bytes)
    }
}

impl Bounds {
    fn of(basic: Basic, at: i64) -> Bounds {
        let end = at + i64::from(basic.size);
        Bounds {
            lower: at,
            upper: end,
            marked: (false, false),
            data: Some((at, end)),
            align: i64::from(basic.align),
        }
    }

    /// The lower bound of the data, and its extent.
    pub fn true_extent(&self) -> (i64, i64) {
        self.data.map_or((0, 0), |(begin, end)| (begin, end - begin))
    }
}
