//! The trees along which a root's bytes go.

/// The shape of the trees of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shape {
    /// Members forward to others: ⌈log₂ n⌉ steps.
    Binomial,
    /// The root sends to every member itself.
    Star,
}

impl Shape {
    /// The member that sends `me` the bytes of `root`, in a group of `members`. None for the root itself.
    pub(super) fn parent(self, members: u32, root: u32, me: u32) -> Option<u32> {
        let place = (me + members - root) % members;
        match self {
            _ if place == 0 => None,
            Shape::Star => Some(root),
            Shape::Binomial => Some((root + (place & (place - 1))) % members),
        }
    }

    /// The members to which `me` sends the bytes of `root`, those with the most members below them first.
    pub(super) fn children(self, members: u32, root: u32, me: u32) -> Vec<u32> {
        let place = (me + members - root) % members;
        match self {
            Shape::Star if place == 0 => (1..members).map(|other| (root + other) % members).collect(),
            Shape::Star => Vec::new(),
            Shape::Binomial => {
                // One bit below the lowest bit of the own place.
                let bits = if place == 0 {
                    u32::BITS - (members - 1).leading_zeros()
                } else {
                    place.trailing_zeros()
                };
                let places = (0..bits).rev().map(|bit| place + (1 << bit)).filter(|place| *place < members);
                places.map(|place| (root + place) % members).collect()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// every member is reached once, from its parent, and in a binomial tree in ⌈log₂ n⌉ steps.
    #[test]
    fn trees_reach_every_member_once() {
        for members in 1..=70_u32 {
            for root in [0, members / 3, members - 1] {
                for shape in [Shape::Binomial, Shape::Star] {
                    // A member sends to one child per step, so the depth that counts is that of sends.
                    let mut reached = vec![None; members as usize];
                    let mut queue = std::collections::VecDeque::from([(root, 0_u32)]);
                    reached[root as usize] = Some(0);
                    while let Some((member, step)) = queue.pop_front() {
                        for (index, child) in shape.children(members, root, member).into_iter().enumerate() {
                            assert_eq!(shape.parent(members, root, child), Some(member));
                            let at = step + 1 + index as u32;
                            assert_eq!(reached[child as usize].replace(at), None, "reached twice");
                            queue.push_back((child, at));
                        }
                    }
                    assert!(reached.iter().all(Option::is_some), "{members} {root} {shape:?}");
                    assert_eq!(shape.parent(members, root, root), None);
                    let steps = reached.iter().flatten().max().copied().unwrap_or_default();
                    if shape == Shape::Binomial {
                        assert_eq!(steps, members.next_power_of_two().trailing_zeros());
                    }
                }
            }
        }
    }
}
