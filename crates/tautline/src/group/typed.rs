//! Collectives over slices of numbers and other plain values.

use zerocopy::{FromBytes, Immutable, IntoBytes, Unalign};

use super::call::total;
use super::{Call, Group, Reduction};
use crate::error::{Error, Result};

/// A value that is sent as its bytes: numbers, arrays of them, and types that derive zerocopy's traits.
pub trait Item: FromBytes + IntoBytes + Immutable + Copy + 'static {}

impl<T: FromBytes + IntoBytes + Immutable + Copy + 'static> Item for T {}

/// An operation of a reduction. Closures of two values are operations, too.
///
/// It must be associative. Operands are given in the order of the members unless it is commutative.
pub trait Operator<T>: Send + Sync + 'static {
    /// Whether operands may be exchanged.
    const COMMUTATIVE: bool;

    /// Combines two values, of which `lower` is that of lower members.
    fn combine(&self, lower: T, upper: T) -> T;
}

impl<T, F: Fn(T, T) -> T + Send + Sync + 'static> Operator<T> for F {
    const COMMUTATIVE: bool = false;

    fn combine(&self, lower: T, upper: T) -> T {
        self(lower, upper)
    }
}

/// The sum. Integers wrap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Sum;

/// The product. Integers wrap.
#[derive(Clone, Copy, Debug, Default)]
pub struct Product;

/// The least value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Min;

/// The greatest value.
#[derive(Clone, Copy, Debug, Default)]
pub struct Max;

macro_rules! operators {
    ($($number:ty: $sum:expr, $product:expr;)*) => {$(
        impl Operator<$number> for Sum {
            const COMMUTATIVE: bool = true;
            fn combine(&self, lower: $number, upper: $number) -> $number { $sum(lower, upper) }
        }
        impl Operator<$number> for Product {
            const COMMUTATIVE: bool = true;
            fn combine(&self, lower: $number, upper: $number) -> $number { $product(lower, upper) }
        }
        impl Operator<$number> for Min {
            const COMMUTATIVE: bool = true;
            fn combine(&self, lower: $number, upper: $number) -> $number { lower.min(upper) }
        }
        impl Operator<$number> for Max {
            const COMMUTATIVE: bool = true;
            fn combine(&self, lower: $number, upper: $number) -> $number { lower.max(upper) }
        }
    )*};
}

operators! {
    u8: u8::wrapping_add, u8::wrapping_mul;
    u16: u16::wrapping_add, u16::wrapping_mul;
    u32: u32::wrapping_add, u32::wrapping_mul;
    u64: u64::wrapping_add, u64::wrapping_mul;
    usize: usize::wrapping_add, usize::wrapping_mul;
    i8: i8::wrapping_add, i8::wrapping_mul;
    i16: i16::wrapping_add, i16::wrapping_mul;
    i32: i32::wrapping_add, i32::wrapping_mul;
    i64: i64::wrapping_add, i64::wrapping_mul;
    isize: isize::wrapping_add, isize::wrapping_mul;
    f32: |a: f32, b: f32| a + b, |a: f32, b: f32| a * b;
    f64: |a: f64, b: f64| a + b, |a: f64, b: f64| a * b;
}

impl Reduction {
    /// The reduction of values of a type by an operator.
    pub fn of<T: Item, O: Operator<T>>(operator: O) -> Reduction {
        Reduction::new(size_of::<T>(), O::COMMUTATIVE, move |lower, upper| {
            let (Ok(lower), Ok(upper)) =
                (<[Unalign<T>]>::ref_from_bytes(lower), <[Unalign<T>]>::mut_from_bytes(upper))
            else {
                return;
            };
            for (lower, upper) in lower.iter().zip(upper) {
                upper.set(operator.combine(lower.get(), upper.get()));
            }
        })
    }
}

/// The lengths in bytes of some values each. What no memory holds stays too long.
fn bytes<T>(lens: &[usize]) -> Vec<usize> {
    lens.iter().map(|len| len.saturating_mul(size_of::<T>())).collect()
}

/// The same of members with their numbers.
fn in_bytes<T>(lens: &[(usize, usize)]) -> Vec<(usize, usize)> {
    lens.iter().map(|(member, len)| (*member, len.saturating_mul(size_of::<T>()))).collect()
}

impl Group {
    /// Waits until all members have called it.
    pub fn barrier(&self) -> Result<()> {
        self.run_into(&Call::Barrier, &[], &mut [])
    }

    /// Gives all members the values of the root. All slices have the same length.
    pub fn broadcast<T: Item>(&self, root: usize, values: &mut [T]) -> Result<()> {
        let call = Call::Broadcast { root, len: size_of_val(values) };
        let bytes = values.as_mut_bytes();
        if self.member() == root {
            self.run_into(&call, bytes, &mut [])
        } else {
            self.run_into(&call, &[], bytes)
        }
    }

    /// Gives the root the values of all members, in order. At the root `all` has room for them; elsewhere it
    /// is not used, and may be empty.
    pub fn gather<T: Item>(&self, root: usize, values: &[T], all: &mut [T]) -> Result<()> {
        let call = Call::Gather { root, len: size_of_val(values) };
        let at_root = self.member() == root;
        self.run_into(&call, values.as_bytes(), if at_root { all.as_mut_bytes() } else { &mut [] })
    }

    /// As [`Group::gather`], with one slice: at the root all values, of which its own are in their place
    /// already, elsewhere the member's own.
    pub fn gather_in_place<T: Item>(&self, root: usize, values: &mut [T]) -> Result<()> {
        if self.member() != root {
            return self.gather(root, values, &mut []);
        }
        let len = self.part_of(values)?;
        let own = values[root * len..][..len].to_vec();
        self.gather(root, &own, values)
    }

    /// As [`Group::gather`], with `lens` values of each member; the list is read at the root only.
    pub fn gather_varied<T: Item>(
        &self,
        root: usize,
        values: &[T],
        all: &mut [T],
        lens: &[usize],
    ) -> Result<()> {
        let call = Call::GatherVaried { root, len: size_of_val(values), lens: bytes::<T>(lens) };
        let at_root = self.member() == root;
        self.run_into(&call, values.as_bytes(), if at_root { all.as_mut_bytes() } else { &mut [] })
    }

    /// As [`Group::gather_varied`], with one slice: at the root all values, of which its own are in their
    /// place already, elsewhere the member's own.
    pub fn gather_varied_in_place<T: Item>(
        &self,
        root: usize,
        values: &mut [T],
        lens: &[usize],
    ) -> Result<()> {
        if self.member() != root {
            return self.gather_varied(root, values, &mut [], lens);
        }
        let own = self.own_of(values, lens)?.to_vec();
        self.gather_varied(root, &own, values, lens)
    }

    /// Gives each member a part of the root's values, as many as `values` has room for. Elsewhere `all` is
    /// not used, and may be empty.
    pub fn scatter<T: Item>(&self, root: usize, all: &[T], values: &mut [T]) -> Result<()> {
        let call = Call::Scatter { root, len: size_of_val(values) };
        self.run_into(&call, if self.member() == root { all.as_bytes() } else { &[] }, values.as_mut_bytes())
    }

    /// As [`Group::scatter`], with one slice: at the root the values for all, which stay as they are,
    /// elsewhere the member's part.
    pub fn scatter_in_place<T: Item>(&self, root: usize, values: &mut [T]) -> Result<()> {
        if self.member() != root {
            return self.scatter(root, &[], values);
        }
        let len = self.part_of(values)?;
        let mut own = values[root * len..][..len].to_vec();
        self.scatter(root, values, &mut own)
    }

    /// As [`Group::scatter`], with `lens` values for each member; the list is read at the root only.
    pub fn scatter_varied<T: Item>(
        &self,
        root: usize,
        all: &[T],
        lens: &[usize],
        values: &mut [T],
    ) -> Result<()> {
        let call = Call::ScatterVaried { root, len: size_of_val(values), lens: bytes::<T>(lens) };
        self.run_into(&call, if self.member() == root { all.as_bytes() } else { &[] }, values.as_mut_bytes())
    }

    /// As [`Group::scatter_varied`], with one slice: at the root the values for all, which stay as they are,
    /// elsewhere the member's part.
    pub fn scatter_varied_in_place<T: Item>(
        &self,
        root: usize,
        values: &mut [T],
        lens: &[usize],
    ) -> Result<()> {
        if self.member() != root {
            return self.scatter_varied(root, &[], lens, values);
        }
        let mut own = self.own_of(values, lens)?.to_vec();
        self.scatter_varied(root, values, lens, &mut own)
    }

    /// Gives all members the values of all members, in order.
    pub fn all_gather<T: Item>(&self, values: &[T], all: &mut [T]) -> Result<()> {
        let call = Call::AllGather { len: size_of_val(values) };
        self.run_into(&call, values.as_bytes(), all.as_mut_bytes())
    }

    /// As [`Group::all_gather`], with `lens` values of each member.
    pub fn all_gather_varied<T: Item>(&self, values: &[T], all: &mut [T], lens: &[usize]) -> Result<()> {
        let call = Call::AllGatherVaried { lens: bytes::<T>(lens) };
        self.run_into(&call, values.as_bytes(), all.as_mut_bytes())
    }

    /// As [`Group::all_gather`], where each member's values are in their place in `all` already. They are
    /// copied once.
    pub fn all_gather_in_place<T: Item>(&self, all: &mut [T]) -> Result<()> {
        let len = self.part_of(all)?;
        let own = all[self.member() * len..][..len].to_vec();
        self.all_gather(&own, all)
    }

    /// As [`Group::all_gather_varied`], where each member's values are in their place in `all` already. They
    /// are copied once.
    pub fn all_gather_varied_in_place<T: Item>(&self, all: &mut [T], lens: &[usize]) -> Result<()> {
        let own = self.own_of(all, lens)?.to_vec();
        self.all_gather_varied(&own, all, lens)
    }

    /// This member's part of the values of all.
    fn own_of<'a, T>(&self, all: &'a [T], lens: &[usize]) -> Result<&'a [T]> {
        let (me, room) = (self.member(), all.len());
        let (before, own) = (total(&lens[..me.min(lens.len())]), lens.get(me).copied().unwrap_or(0));
        let own = all.get(before..before.saturating_add(own));
        own.ok_or_else(|| Error::other(format!("{room} values have no room for those of member {me}")))
    }

    /// Sends each member its part of `values`, and receives the parts of all. The slices have the same
    /// length, a multiple of the number of members.
    pub fn all_to_all<T: Item>(&self, values: &[T], received: &mut [T]) -> Result<()> {
        let call = Call::AllToAll { len: self.part_of(values)? * size_of::<T>() };
        self.run_into(&call, values.as_bytes(), received.as_mut_bytes())
    }

    /// As [`Group::all_to_all`]: what each member sends is replaced by what it receives. All of it is copied
    /// once.
    pub fn all_to_all_in_place<T: Item>(&self, values: &mut [T]) -> Result<()> {
        let sent = values.to_vec();
        self.all_to_all(&sent, values)
    }

    /// How many of these values each member has.
    fn part_of<T>(&self, values: &[T]) -> Result<usize> {
        let (len, size) = (values.len(), self.size());
        if len.is_multiple_of(size) {
            return Ok(len / size);
        }
        Err(Error::other(format!("{len} values cannot be divided among {size} members")))
    }

    /// As [`Group::all_to_all`], with `lens` values for each member and `received_lens` from each.
    pub fn all_to_all_varied<T: Item>(
        &self,
        values: &[T],
        lens: &[usize],
        received: &mut [T],
        received_lens: &[usize],
    ) -> Result<()> {
        let call = Call::AllToAllVaried { send: bytes::<T>(lens), receive: bytes::<T>(received_lens) };
        self.run_into(&call, values.as_bytes(), received.as_mut_bytes())
    }

    /// As [`Group::all_to_all_varied`], with as many values from each member as for it: what this member
    /// sends is replaced by what it receives. All of it is copied once.
    pub fn all_to_all_varied_in_place<T: Item>(&self, values: &mut [T], lens: &[usize]) -> Result<()> {
        let sent = values.to_vec();
        self.all_to_all_varied(&sent, lens, values, lens)
    }

    /// Sends `values` to all destinations, and receives what the sources send, in the order of the list,
    /// which has each with the number of its values. See [`Call::NeighbourGather`].
    pub fn neighbour_gather<T: Item>(
        &self,
        values: &[T],
        destinations: &[usize],
        received: &mut [T],
        sources: &[(usize, usize)],
    ) -> Result<()> {
        let (sources, destinations) = (in_bytes::<T>(sources), destinations.to_vec());
        let call = Call::NeighbourGather { sources, destinations, len: size_of_val(values) };
        self.run_into(&call, values.as_bytes(), received.as_mut_bytes())
    }

    /// As [`Group::neighbour_gather`], with a part of `values` for each destination: the list has each with
    /// the number of values for it.
    pub fn neighbour_all_to_all<T: Item>(
        &self,
        values: &[T],
        destinations: &[(usize, usize)],
        received: &mut [T],
        sources: &[(usize, usize)],
    ) -> Result<()> {
        let (sources, destinations) = (in_bytes::<T>(sources), in_bytes::<T>(destinations));
        let call = Call::NeighbourAllToAll { sources, destinations };
        self.run_into(&call, values.as_bytes(), received.as_mut_bytes())
    }

    /// Replaces the root's values by the reduction of all members' values, element by element. Elsewhere they
    /// stay as they are.
    pub fn reduce<T: Item>(&self, root: usize, values: &mut [T], operator: impl Operator<T>) -> Result<()> {
        let call = Call::Reduce { root, len: size_of_val(values), with: Reduction::of(operator) };
        if self.member() == root {
            self.run_in_place(&call, values.as_mut_bytes())
        } else {
            self.run_into(&call, values.as_bytes(), &mut [])
        }
    }

    /// Replaces everybody's values by the reduction of all members' values, element by element.
    pub fn all_reduce<T: Item>(&self, values: &mut [T], operator: impl Operator<T>) -> Result<()> {
        let call = Call::AllReduce { len: size_of_val(values), with: Reduction::of(operator) };
        self.run_in_place(&call, values.as_mut_bytes())
    }

    /// Gives each member its part, of `lens` values, of the reduction of all members' values.
    pub fn reduce_scatter<T: Item>(
        &self,
        values: &[T],
        part: &mut [T],
        lens: &[usize],
        operator: impl Operator<T>,
    ) -> Result<()> {
        let call = Call::ReduceScatter { lens: bytes::<T>(lens), with: Reduction::of(operator) };
        self.run_into(&call, values.as_bytes(), part.as_mut_bytes())
    }

    /// As [`Group::reduce_scatter`], with one slice: the member's part takes the place of its first values.
    /// The others stay as they are. All of it is copied once.
    pub fn reduce_scatter_in_place<T: Item>(
        &self,
        values: &mut [T],
        lens: &[usize],
        operator: impl Operator<T>,
    ) -> Result<()> {
        let own = lens.get(self.member()).copied().unwrap_or(0).min(values.len());
        let all = values.to_vec();
        self.reduce_scatter(&all, &mut values[..own], lens, operator)
    }

    /// Replaces the values by the reduction of those of the members up to this one.
    pub fn scan<T: Item>(&self, values: &mut [T], operator: impl Operator<T>) -> Result<()> {
        let call = Call::Scan { len: size_of_val(values), with: Reduction::of(operator) };
        self.run_in_place(&call, values.as_mut_bytes())
    }

    /// Replaces the values by the reduction of those of the members before this one. The first member's stay
    /// as they are.
    pub fn exclusive_scan<T: Item>(&self, values: &mut [T], operator: impl Operator<T>) -> Result<()> {
        let call = Call::ExclusiveScan { len: size_of_val(values), with: Reduction::of(operator) };
        if self.member() > 0 {
            self.run_in_place(&call, values.as_mut_bytes())
        } else {
            self.run_into(&call, values.as_bytes(), &mut [])
        }
    }
}
