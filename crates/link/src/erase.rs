//! Overwrites secrets before their memory is released (H-17).

use std::hint::black_box;

/// Overwrites secret bytes. Best effort: copies that the compiler made on the stack are not reached.
pub fn erase(secret: &mut [u8]) {
    secret.fill(0);
    // The compiler must assume that the zeros are read, and so writes them although the memory is released.
    black_box(secret);
}

/// Overwrites a key of a cipher whose crate cannot do it by `other`, a key that is no secret.
pub(crate) fn overwrite<T>(secret: &mut T, other: T) {
    *secret = other;
    black_box(secret);
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom};
    use std::sync::{Mutex, PoisonError};

    use tautline_wire::handshake::Security;

    use crate::keys::{JobKey, RandomSequence, Role};
    use crate::seal::Seal;
    use crate::{ChannelIds, Config, Peering, PeeringParams};

    /// Whoever looks into memory copies it. Two at a time would find the copies.
    static ALONE: Mutex<()> = Mutex::new(());

    /// Bytes to look for, kept so that they are not found here.
    struct Pattern(Vec<u8>);

    impl Pattern {
        fn new(bytes: &[u8]) -> Pattern {
            Pattern(bytes.iter().map(|byte| byte ^ 0x5a).collect())
        }

        fn count_in(&self, memory: &[u8]) -> usize {
            let same = |window: &&[u8]| window.iter().zip(&self.0).all(|(a, b)| a ^ 0x5a == *b);
            memory.windows(self.0.len()).filter(|w| w[0] ^ 0x5a == self.0[0]).filter(same).count()
        }
    }

    /// How often each pattern is in memory that was allocated, whether it has been freed or not. The stack of
    /// this thread does not count.
    fn found(patterns: &[Pattern]) -> Vec<usize> {
        let local = 0u8;
        let here = &raw const local as u64;
        let maps = std::fs::read_to_string("/proc/self/maps").expect("/proc/self/maps is readable");
        let mut file = std::fs::File::open("/proc/self/mem").expect("/proc/self/mem is readable");
        let mut counts = vec![0; patterns.len()];
        for line in maps.lines() {
            let mut words = line.split_whitespace();
            let (Some(range), Some(rights)) = (words.next(), words.next()) else { continue };
            let name = words.nth(3).unwrap_or("");
            let Some((start, end)) = range.split_once('-') else { continue };
            let [start, end] = [start, end].map(|hex| u64::from_str_radix(hex, 16).unwrap_or(0));
            let allocated = name.is_empty() || name == "[heap]";
            if !rights.starts_with("rw") || !allocated || (start..end).contains(&here) {
                continue;
            }
            // A stack of another thread, or a large allocation, is more than what is looked for here.
            let mut memory = vec![0; (end - start).min(4 << 20) as usize];
            if file.seek(SeekFrom::Start(start)).is_ok() && file.read_exact(&mut memory).is_ok() {
                for (count, pattern) in counts.iter_mut().zip(patterns) {
                    *count += pattern.count_in(&memory);
                }
            }
            super::erase(&mut memory);
        }
        counts
    }

    fn secret(seed: u8) -> [u8; 32] {
        std::array::from_fn(|i| seed.wrapping_add(1).wrapping_mul(i as u8 * 2 + 91) ^ 0xc3)
    }

    /// H-17: the job key, and the secrets of numbers, are gone from memory when their last owner is.
    #[test]
    fn job_keys_are_erased() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        let patterns = [Pattern::new(&secret(1)[8..]), Pattern::new(&secret(2)[8..])];
        let params = PeeringParams {
            key: JobKey::new(secret(1)),
            me: 0,
            peer: 1,
            lane: 0,
            peer_lane: 0,
            port: 0,
            max_frame: 1472,
        };
        let mut peering = Box::new(Peering::new(params, Config::default()));
        peering.connect(1, ChannelIds { epoch: 1, channel: 1 });
        let hello = peering.poll_hello(1);
        let mut sequence = Box::new(RandomSequence::new(secret(2)));
        sequence.bytes();
        assert!(found(&patterns).iter().all(|count| *count > 0), "the test does not find what is there");
        drop((peering, sequence));
        assert_eq!(found(&patterns), [0, 0]);
        assert!(hello.is_some());
    }

    /// H-17: the keys of a channel are gone from memory when it ends, in every mode.
    #[test]
    fn channel_keys_are_erased() {
        let _alone = ALONE.lock().unwrap_or_else(PoisonError::into_inner);
        for (seed, mode) in [(3, Security::Fabric), (4, Security::Sealed)] {
            let keys = Box::new(JobKey::new(secret(seed)).derive(Role::Initiator, (0, 5), (1, 6)));
            let mut patterns = vec![Pattern::new(&keys.tx[8..])];
            if mode == Security::Sealed {
                patterns.push(Pattern::new(&crate::seal::first_key(&keys.tx)));
            } else {
                let [_, pad, long] = crate::tag::secrets(&keys.tx);
                patterns.extend([Pattern::new(&pad), Pattern::new(&long)]);
            }
            let mut seal = Box::new(Seal::new(mode, &keys));
            if mode == Security::Sealed {
                seal.encipher(1, &[], &mut [0; 20]);
            } else {
                seal.tag(1, &[0; 300]);
            }
            let before = found(&patterns);
            assert!(
                before.iter().all(|count| *count > 0),
                "{mode:?}: the test does not find them: {before:?}"
            );
            drop((keys, seal));
            assert!(found(&patterns).iter().all(|count| *count == 0), "{mode:?}: {:?}", found(&patterns));
        }
    }
}
