//! Which hosts the members of a group run on (G-23).

/// The hosts of a group's members, as one member sees them.
#[derive(Debug, Default)]
pub(super) struct Placement {
    /// The members of each host, in order. Hosts are in the order of their first members.
    hosts: Vec<Vec<usize>>,
    /// This member's host, and its number among the members there.
    host: usize,
    me: usize,
}

impl Placement {
    /// Of members with these numbers of hosts.
    pub(super) fn new(numbers: &[u64], me: usize) -> Placement {
        let mut known: Vec<u64> = Vec::new();
        let mut hosts: Vec<Vec<usize>> = Vec::new();
        for (member, number) in numbers.iter().enumerate() {
            match known.iter().position(|known| known == number) {
                Some(host) => hosts[host].push(member),
                None => {
                    known.push(*number);
                    hosts.push(vec![member]);
                }
            }
        }
        let mut placement = Placement { hosts, host: 0, me: 0 };
        (placement.host, placement.me) = placement.find(me).unwrap_or_default();
        placement
    }

    /// The host of a member, and its number there.
    fn find(&self, member: usize) -> Option<(usize, usize)> {
        let on = |members: &Vec<usize>| members.iter().position(|other| *other == member);
        self.hosts.iter().enumerate().find_map(|(host, members)| Some((host, on(members)?)))
    }

    /// How many hosts there are.
    pub(super) fn hosts(&self) -> usize {
        self.hosts.len()
    }

    pub(super) fn is_one_host(&self) -> bool {
        self.hosts.len() == 1
    }

    /// Whether no two members are on one host.
    pub(super) fn is_spread(&self) -> bool {
        self.hosts.iter().all(|members| members.len() == 1)
    }

    /// The number of this member's host.
    pub(super) fn host(&self) -> usize {
        self.host
    }

    /// This member's number on its host.
    pub(super) fn me(&self) -> usize {
        self.me
    }

    /// The members of this host.
    pub(super) fn local(&self) -> &[usize] {
        &self.hosts[self.host]
    }

    /// The number on this host of a member that is there.
    pub(super) fn number_here(&self, member: usize) -> Option<usize> {
        self.local().iter().position(|other| *other == member)
    }

    /// The host of a root.
    pub(super) fn host_of(&self, root: usize) -> usize {
        self.find(root).map_or(0, |(host, _)| host)
    }

    /// The head of each host, which exchanges messages with the others: the root, and the first member where
    /// the root is not.
    pub(super) fn heads(&self, root: Option<usize>) -> impl Iterator<Item = usize> {
        self.hosts.iter().map(move |members| match root {
            Some(root) if members.contains(&root) => root,
            _ => members[0],
        })
    }

    /// The head of this host, by its number here.
    pub(super) fn head_here(&self, root: Option<usize>) -> usize {
        root.and_then(|root| self.number_here(root)).unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn members_are_found_on_their_hosts() {
        let numbers = [7, 9, 7, 8, 9, 7];
        let placement = Placement::new(&numbers, 4);
        assert_eq!((placement.host(), placement.me(), placement.local()), (1, 1, &[1, 4][..]));
        assert_eq!(placement.heads(None).collect::<Vec<_>>(), [0, 1, 3]);
        assert_eq!(placement.heads(Some(5)).collect::<Vec<_>>(), [5, 1, 3]);
        assert_eq!(placement.heads(Some(4)).collect::<Vec<_>>(), [0, 4, 3]);
        assert_eq!((placement.head_here(Some(4)), placement.head_here(Some(5))), (1, 0));
        assert_eq!((placement.host_of(5), placement.host_of(3)), (0, 2));
        assert_eq!((placement.number_here(4), placement.number_here(5)), (Some(1), None));
        assert!(!placement.is_one_host() && !placement.is_spread());
        assert!(Placement::new(&[3, 3], 1).is_one_host() && Placement::new(&[3, 4], 1).is_spread());
    }
}
