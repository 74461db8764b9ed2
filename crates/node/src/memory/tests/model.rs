//! Answers to gets, and operations of the node itself, for the model.

use tautline_wire::record::Records;

use super::*;

/// Sends the answer to the only request of a peer, a get, and returns its bytes.
pub(super) fn answer_get(ep: &Node, rank: Rank, id: u32) -> Vec<u8> {
    let mut writer = FakeWriter::new(usize::MAX);
    assert!(ep.with(|it| it.pump_answers(rank, &mut usize::MAX.clone(), &mut writer)));
    let mut bytes = Vec::new();
    for frame in &writer.frames {
        let record = Records::new(frame, 0).next().unwrap().unwrap();
        let Ok(Message::Data { id: of, at, data }) = Message::parse(&record) else { panic!("{record:?}") };
        assert_eq!((of, at), (id, bytes.len() as u64));
        bytes.extend_from_slice(data);
    }
    bytes
}

/// T-1: makes an operation of the node itself whose local side is in its aperture. The tripwires that watch
/// for completions fire when it is complete, and not before.
pub(super) fn operate(
    ep: &Node,
    rng: &mut Rng,
    aperture: ApertureId,
    (memory, model): (&Arc<ApertureMemory>, &mut Vec<u8>),
    wires: &mut [Modelled],
) {
    let rank = 1 + rng.below(2) as Rank;
    let at = rng.below(LEN);
    let len = 1 + rng.below(LEN - at).min(1 << rng.below(12)).min(LEN - at - 1);
    let local = Local { memory: memory.clone(), aperture: Some(aperture), at, len };
    let range = at as usize..(at + len) as usize;
    let is_get = rng.below(2) == 0;
    let operation = if is_get { Operation::Get(local) } else { Operation::Put(local) };
    let mut writer = FakeWriter::new(usize::MAX);
    let id = ep.with(|it| {
        it.submit(&cookie_of(rank), &[(0, operation)], Completion::Ignored, None).unwrap();
        it.pump_peer(rank, &mut writer);
        it.peers.get(rank).unwrap().requests.sent
    });
    let unfired = |wires: &[Modelled]| assert!(wires.iter().all(|wire| wire.cell.fires() == wire.fires));
    unfired(wires);
    if is_get {
        let data: Vec<u8> = (0..len).map(|_| rng.below(5) as u8).collect();
        let mut sent = 0;
        while sent < data.len() {
            unfired(wires);
            let part = 1 + rng.below((data.len() - sent) as u64) as usize;
            let message = Message::Data { id, at: sent as u64, data: &[] };
            assert!(ep.handle(rank, &message, 0, &data[sent..sent + part]));
            sent += part;
        }
        model[range.clone()].copy_from_slice(&data);
    } else {
        let put: Vec<u8> = writer.frames.iter().flat_map(|frame| put_data(frame)).collect();
        assert!(put == model[range.clone()], "{len} bytes from {at} on");
    }
    // All requests up to this one are done; a get was with its last bytes.
    assert!(ep.handle(rank, &Message::Done { id }, 0, &[]));
    let range = (at, at + len, at + len);
    wires.iter_mut().for_each(|wire| wire.access(Access::COMPLETE, range, model));
}

/// The bytes that a frame puts, if it is one of a put.
fn put_data(frame: &[u8]) -> Vec<u8> {
    let record = Records::new(frame, 0).next().unwrap().unwrap();
    match Message::parse(&record) {
        Ok(Message::Put(_, data) | Message::Part(_, _, data)) => data.to_vec(),
        _ => Vec::new(),
    }
}

/// A cookie for memory of a peer.
fn cookie_of(rank: Rank) -> Cookie {
    let mut owner = Memory::new(rank, 5);
    let memory = Arc::new(ApertureMemory::adopt(vec![0; LEN as usize]).unwrap());
    let aperture = owner.open_aperture(memory).unwrap();
    owner.grant_cookie(aperture, (0, LEN), (Rights::ALL, u64::MAX), [3; 16]).unwrap()
}
