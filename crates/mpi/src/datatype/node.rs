//! Where the bytes of a datatype lie: a tree of repetitions and sequences, in the order of the type map. It
//! is as small as the description that the program gave, however many elements that describes.
//!
//! A position in a message is a number of packed bytes. Every walk starts at such a position and ends at one,
//! so a message can be cut anywhere, and nothing has to be kept from one piece to the next.

use std::sync::Arc;

use super::basic::Basic;

/// Sequences inside sequences are joined up to this number of parts.
const JOINED_PARTS_MAX: usize = 4096;

/// A part of a type map.
#[derive(Clone, PartialEq, Debug)]
pub enum Node {
    /// One element.
    Element(Basic),
    /// Bytes next to each other, of any elements.
    Bytes(u64),
    /// The same again and again.
    Repeat {
        /// How often; at least two.
        count: u64,
        /// The distance in bytes from one to the next.
        stride: i64,
        /// All packed bytes.
        size: u64,
        /// All elements.
        elements: u64,
        /// What is repeated; not empty.
        inner: Arc<Node>,
    },
    /// One after the other.
    Sequence {
        /// The parts; none is empty.
        parts: Box<[Part]>,
        /// All packed bytes.
        size: u64,
        /// All elements.
        elements: u64,
    },
}

/// A part of a sequence.
#[derive(Clone, PartialEq, Debug)]
pub struct Part {
    /// The distance in bytes from the origin of the sequence.
    at: i64,
    /// The packed bytes of the parts before this one.
    before: u64,
    node: Arc<Node>,
}

impl Node {
    /// A node without elements.
    pub fn empty() -> Arc<Node> {
        Arc::new(Node::Sequence { parts: Box::default(), size: 0, elements: 0 })
    }

    /// `count` times `inner`, `stride` bytes apart; `None` if the size does not fit.
    pub fn repeat(count: u64, stride: i64, inner: &Arc<Node>) -> Option<Arc<Node>> {
        if count == 0 || inner.size() == 0 {
            return Some(Node::empty());
        }
        if count == 1 {
            return Some(Arc::clone(inner));
        }
        let size = inner.size().checked_mul(count).filter(|size| i64::try_from(*size).is_ok())?;
        let elements = inner.elements() * count;
        Some(Arc::new(Node::Repeat { count, stride, size, elements, inner: Arc::clone(inner) }))
    }

    /// Nodes at displacements, in this order; `None` if the size does not fit.
    pub fn sequence(list: impl IntoIterator<Item = (i64, Arc<Node>)>) -> Option<Arc<Node>> {
        let (mut parts, mut size, mut elements) = (Vec::new(), 0u64, 0u64);
        for (at, node) in list {
            if node.size() == 0 {
                continue;
            }
            let before = size;
            size = size.checked_add(node.size()).filter(|size| i64::try_from(*size).is_ok())?;
            elements += node.elements();
            parts.push(Part { at, before, node });
        }
        Some(match &parts[..] {
            [Part { at: 0, node, .. }] => Arc::clone(node),
            _ => Arc::new(Node::Sequence { parts: parts.into(), size, elements }),
        })
    }

    /// The number of packed bytes.
    pub fn size(&self) -> u64 {
        match self {
            Node::Element(basic) => u64::from(basic.size),
            Node::Bytes(size) | Node::Repeat { size, .. } | Node::Sequence { size, .. } => *size,
        }
    }

    /// The number of elements; bytes count as one each.
    pub fn elements(&self) -> u64 {
        match self {
            Node::Element(_) => 1,
            Node::Bytes(size) => *size,
            Node::Repeat { elements, .. } | Node::Sequence { elements, .. } => *elements,
        }
    }

    /// Calls `visit` with the place and the length of each run of bytes between two positions, in order.
    /// `base` is the place of the origin.
    pub fn walk(&self, base: i64, from: u64, to: u64, visit: &mut impl FnMut(i64, u64)) {
        match self {
            Node::Element(_) | Node::Bytes(_) => visit(base + from.cast_signed(), to - from),
            Node::Repeat { stride, inner, .. } => walk_repeated(inner, *stride, base, (from, to), visit),
            Node::Sequence { parts, .. } => {
                let first = parts.partition_point(|part| part.before + part.node.size() <= from);
                for part in &parts[first..] {
                    if part.before >= to {
                        break;
                    }
                    let begin = from.saturating_sub(part.before);
                    let end = (to - part.before).min(part.node.size());
                    part.node.walk(base + part.at, begin, end, visit);
                }
            }
        }
    }

    /// Calls `visit` with the place of each element, in order.
    pub fn walk_elements(&self, base: i64, visit: &mut impl FnMut(i64, Basic)) {
        match self {
            Node::Element(basic) => visit(base, *basic),
            Node::Bytes(_) => {}
            Node::Repeat { count, stride, inner, .. } => {
                for index in 0..count.cast_signed() {
                    inner.walk_elements(base + index * stride, visit);
                }
            }
            Node::Sequence { parts, .. } => {
                for part in parts {
                    part.node.walk_elements(base + part.at, visit);
                }
            }
        }
    }

    /// How many elements begin in the first `bytes` packed bytes; `None` if one of them is cut.
    pub fn elements_in(&self, bytes: u64) -> Option<u64> {
        match self {
            _ if bytes == 0 => Some(0),
            _ if bytes == self.size() => Some(self.elements()),
            Node::Element(_) => None,
            Node::Bytes(_) => Some(bytes),
            Node::Repeat { inner, .. } => {
                let (full, rest) = (bytes / inner.size(), bytes % inner.size());
                Some(full * inner.elements() + inner.elements_in(rest)?)
            }
            Node::Sequence { parts, .. } => {
                let mut elements = 0;
                for part in parts.iter().take_while(|part| part.before < bytes) {
                    elements += part.node.elements_in((bytes - part.before).min(part.node.size()))?;
                }
                Some(elements)
            }
        }
    }

    /// The one kind of element that this consists of, if it is only one.
    pub fn uniform(&self) -> Option<Basic> {
        match self {
            Node::Element(basic) => Some(*basic),
            Node::Bytes(_) => None,
            Node::Repeat { inner, .. } => inner.uniform(),
            Node::Sequence { parts, .. } => {
                let (first, rest) = parts.split_first()?;
                let basic = first.node.uniform()?;
                rest.iter().all(|part| part.node.uniform() == Some(basic)).then_some(basic)
            }
        }
    }

    /// The same bytes in the same order with as few and as long runs as can be found.
    pub fn merged(self: &Arc<Node>) -> Arc<Node> {
        match &**self {
            Node::Element(basic) => Arc::new(Node::Bytes(u64::from(basic.size))),
            Node::Bytes(_) => Arc::clone(self),
            Node::Repeat { count, stride, inner, size, .. } => {
                let inner = inner.merged();
                if matches!(*inner, Node::Bytes(_)) && inner.size().cast_signed() == *stride {
                    return Arc::new(Node::Bytes(*size));
                }
                if let Node::Repeat { count: of, stride: step, inner, .. } = &*inner
                    && of.cast_signed() * step == *stride
                    && let Some(node) = Node::repeat(of * count, *step, inner)
                {
                    return node;
                }
                Node::repeat(*count, *stride, &inner).unwrap_or_else(|| Arc::clone(self))
            }
            Node::Sequence { parts, .. } => merged_sequence(parts).unwrap_or_else(|| Arc::clone(self)),
        }
    }

    /// The length of the only run, if there is one and it begins at the origin.
    pub fn contiguous(&self) -> Option<u64> {
        if let Node::Bytes(size) = self { Some(*size) } else { None }
    }
}

/// Walks copies of `inner` that are `stride` bytes apart, as many as the positions need.
pub fn walk_repeated(
    inner: &Node,
    stride: i64,
    base: i64,
    (from, to): (u64, u64),
    visit: &mut impl FnMut(i64, u64),
) {
    let each = inner.size();
    if each == 0 || from >= to {
        return;
    }
    let first = from / each;
    let mut begin = first * each;
    let mut at = base + first.cast_signed() * stride;
    while begin < to {
        inner.walk(at, from.saturating_sub(begin), (to - begin).min(each), visit);
        begin += each;
        at += stride;
    }
}

fn merged_sequence(parts: &[Part]) -> Option<Arc<Node>> {
    let mut list: Vec<(i64, Arc<Node>)> = Vec::new();
    for part in parts {
        let node = part.node.merged();
        match &*node {
            Node::Sequence { parts: inner, .. } if list.len() + inner.len() <= JOINED_PARTS_MAX => {
                for one in inner {
                    push_merged(&mut list, part.at + one.at, Arc::clone(&one.node));
                }
            }
            _ => push_merged(&mut list, part.at, node),
        }
    }
    if let Some((at, node)) = as_repeat(&list) {
        list = vec![(at, node)];
    }
    Node::sequence(list)
}

/// Adds a node, or makes the last run longer.
fn push_merged(list: &mut Vec<(i64, Arc<Node>)>, at: i64, node: Arc<Node>) {
    if let Some((before, last)) = list.last_mut()
        && let (Node::Bytes(have), Node::Bytes(more)) = (&**last, &*node)
        && *before + have.cast_signed() == at
    {
        *last = Arc::new(Node::Bytes(have + more));
        return;
    }
    list.push((at, node));
}

/// Three or more equal nodes at equal distances are a repetition.
fn as_repeat(list: &[(i64, Arc<Node>)]) -> Option<(i64, Arc<Node>)> {
    let [(first, node), (second, _), _, ..] = list else { return None };
    let stride = second - first;
    let regular = list.windows(2).all(|pair| pair[1].0 - pair[0].0 == stride && pair[1].1 == *node);
    let count = u64::try_from(list.len()).ok()?;
    if regular { Some((*first, Node::repeat(count, stride, node)?)) } else { None }
}
