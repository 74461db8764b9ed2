//! The actions of a single member, for rules that a network of members does not need in order to agree: other
//! rules make up for them, later.

use tautline_members::{Action, End, Fact, Membership, Message, Notice, Rank, Start, Status};

/// Rank 0 of `members` that have all been started, with channels to `up`, and what it does first done.
fn member(members: u32, up: &[Rank]) -> Membership {
    let start = Start { rank: 0, members, joined: 0, process: 100, present: true, bound: 1_000 };
    let mut member = Membership::new(0, start);
    for rank in up {
        member.handle_up(0, *rank, true);
    }
    actions(&mut member);
    member
}

fn actions(member: &mut Membership) -> Vec<Action> {
    std::iter::from_fn(|| member.poll_action()).collect()
}

/// What a member says that goes on in this incarnation, as this process.
fn message(process: u64, incarnation: u32, facts: &[(Rank, Fact)]) -> Message {
    Message { process, incarnation, sync: false, facts: facts.to_vec() }
}

fn fact(incarnation: u32, status: Status) -> Fact {
    Fact { incarnation, status }
}

/// To whom a fact is sent, in order.
fn told(actions: &[Action], rank: Rank, fact: Fact) -> Vec<Rank> {
    let receiver = |action: &Action| match action {
        Action::Send(to, message) if message.facts.contains(&(rank, fact)) => Some(*to),
        _ => None,
    };
    let mut told: Vec<_> = actions.iter().filter_map(receiver).collect();
    told.sort_unstable();
    told
}

fn notices(actions: &[Action]) -> Vec<Notice> {
    let notice = |action: &Action| match action {
        Action::Tell(notice) => Some(*notice),
        _ => None,
    };
    actions.iter().filter_map(notice).collect()
}

/// B-4, B-5, B-7: a member tells of a change the first living rank at each distance, those that it would have
/// told before, and the member that is said to have ended, if there is a channel to it.
#[test]
fn changes_are_told_to_former_neighbours() {
    // Of eight ranks those at distances 1, 2 and 4 are told, and 3 in place of 2 when that is dead.
    let mut member = member(8, &[1, 2, 3, 4, 5, 6, 7]);
    let died = fact(0, Status::Died);
    // Rank 6 tells of the end of rank 2, to which there is a channel.
    member.handle_message(1, 6, &message(6, 0, &[(2, died)]));
    assert_eq!(told(&actions(&mut member), 2, died), [1, 2, 3, 4]);
    // It comes back, and is the first at distance 2 in place of rank 3, which is told all the same.
    let started = fact(1, Status::Alive);
    member.handle_message(2, 6, &message(6, 0, &[(2, started)]));
    assert_eq!(told(&actions(&mut member), 2, started), [1, 2, 3, 4]);
}

/// B-5, B-7: a member that was itself declared dead goes on in the next incarnation. It also tells
/// those that the same message declares dead: it opens channels to them.
#[test]
fn a_member_that_was_declared_dead_tells_former_neighbours() {
    let mut member = member(8, &[1]);
    let died = fact(0, Status::Died);
    member.handle_message(1, 1, &message(1, 0, &[]));
    // One message, from beyond a partition: this member has died, and so have those at distances 2 and 4.
    member.handle_message(1, 1, &message(1, 0, &[(0, died), (2, died), (4, died)]));
    let actions = actions(&mut member);
    assert_eq!(notices(&actions), [Notice::Fenced { incarnation: 1 }, Notice::Died(2), Notice::Died(4)]);
    assert_eq!(member.incarnation(), 1);
    assert_eq!(told(&actions, 0, fact(1, Status::Alive)), [1]);
    for rank in [2, 4] {
        assert!(actions.contains(&Action::Connect(rank)), "{rank}: {actions:?}");
    }
    // They are told when the channel is there.
    member.handle_up(2, 2, true);
    let actions = self::actions(&mut member);
    assert_eq!(told(&actions, 0, fact(1, Status::Alive)), [2]);
}

/// B-7: a member to which there is a channel is told that others have declared it dead, also if nothing else
/// would be sent to it; one to which there is none is not connected for that.
#[test]
fn a_member_learns_that_it_was_declared_dead() {
    // Rank 3 is at no distance that is a power of two.
    let died = fact(0, Status::Died);
    let mut with_channel = member(8, &[1, 2, 3, 4]);
    with_channel.handle_message(1, 1, &message(1, 0, &[(3, died)]));
    let actions = actions(&mut with_channel);
    assert_eq!(notices(&actions), [Notice::Died(3)]);
    assert_eq!(told(&actions, 3, died), [2, 3, 4]);
    let mut without = member(8, &[1, 2, 4]);
    without.handle_message(1, 1, &message(1, 0, &[(3, died)]));
    let actions = self::actions(&mut without);
    assert_eq!(told(&actions, 3, died), [2, 4]);
    assert!(!actions.contains(&Action::Connect(3)), "{actions:?}");
}

/// B-8: another process in the same incarnation shows that the former one has died; a new channel of the same
/// process, and a later incarnation of it, do not.
#[test]
fn a_restart_in_the_same_incarnation_is_a_death() {
    let mut member = member(4, &[1, 2]);
    member.handle_message(1, 2, &message(7, 0, &[]));
    assert_eq!(actions(&mut member), []);
    // Another channel, of the same process.
    member.handle_down(2, 2, End::Replaced);
    member.handle_up(2, 2, true);
    member.handle_message(2, 2, &message(7, 0, &[]));
    assert_eq!(notices(&actions(&mut member)), []);
    assert_eq!(member.fact(2), Some(fact(0, Status::Alive)));
    // Another channel, of another process: its rank has died, and the process is told.
    member.handle_down(3, 2, End::Replaced);
    member.handle_up(3, 2, true);
    member.handle_message(3, 2, &message(8, 0, &[]));
    let actions = actions(&mut member);
    assert_eq!(notices(&actions), [Notice::Died(2)]);
    assert_eq!(told(&actions, 2, fact(0, Status::Died)), [1, 2]);
    // It goes on in the next incarnation.
    member.handle_message(4, 2, &message(8, 1, &[(2, fact(1, Status::Alive))]));
    assert_eq!(notices(&self::actions(&mut member)), [Notice::Started(2)]);
}
