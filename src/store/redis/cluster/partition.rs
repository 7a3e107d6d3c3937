//! Partitions: how keys are spread over the slots of a cluster.
//!
//! A call touches keys of one slot only. If each key had a slot of its own, no two keys would share
//! a call. So keys are hashed into a bounded number of partitions. A partition has a hash tag, and
//! so a slot, in the middle of an equal range of all slots, so that partitions are spread over the
//! nodes as evenly as slots are.

/// The slots of every Redis Cluster.
pub(super) const SLOTS: usize = 16_384;

pub(in crate::store::redis) const MAX_PARTITIONS: usize = 1024;

/// A power of two, so that every partition has an equal range of slots.
pub(in crate::store::redis) struct Partitions(Box<[String]>);

impl Partitions {
    pub(in crate::store::redis) fn new(count: usize) -> Self {
        let range = SLOTS / count;
        let mut tags = vec![String::new(); count];
        let mut missing = count;
        // The tags are numbers: the smallest whose slot is in the middle half of a range.
        for number in 0_u32.. {
            if missing == 0 {
                break;
            }
            let tag = number.to_string();
            let slot = usize::from(slot(tag.as_bytes()));
            let place = slot % range;
            let tag_of_range = &mut tags[slot / range];
            if tag_of_range.is_empty() && (range / 4..=range * 3 / 4).contains(&place) {
                *tag_of_range = tag;
                missing -= 1;
            }
        }
        Self(tags.into())
    }

    pub(in crate::store::redis) const fn len(&self) -> usize {
        self.0.len()
    }

    /// The partition of a key.
    pub(in crate::store::redis) fn partition_of(&self, key: &str) -> usize {
        usize::from(slot(key.as_bytes())) * self.len() / SLOTS
    }

    pub(in crate::store::redis) fn tag(&self, partition: usize) -> &str {
        &self.0[partition]
    }

    pub(in crate::store::redis) fn into_tags(self) -> Vec<String> {
        self.0.into_vec()
    }

    pub(super) fn slot(&self, partition: usize) -> u16 {
        slot(self.0[partition].as_bytes())
    }
}

/// The slot of a hash tag, its CRC16, as in the specification of Redis Cluster.
fn slot(tag: &[u8]) -> u16 {
    crc16(tag) % SLOTS as u16
}

/// CRC-16/XMODEM.
fn crc16(bytes: &[u8]) -> u16 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u16::from(*byte) << 8, |crc, _| {
            if crc & 0x8000 == 0 {
                crc << 1
            } else {
                crc << 1 ^ 0x1021
            }
        })
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn slots_are_those_of_the_specification() {
        assert_eq!(crc16(b"123456789"), 0x31C3);
        // `CLUSTER KEYSLOT` says so.
        assert_eq!(slot(b"foo"), 12_182);
        assert_eq!(slot(b"alice"), 749);
    }

    #[test]
    fn each_partition_has_a_slot_in_its_range_and_masters_have_equal_shares() {
        for count in [1, 2, 16, 64, MAX_PARTITIONS] {
            let partitions = Partitions::new(count);
            assert_eq!(partitions.len(), count);
            for masters in [3, 5, 6] {
                let mut of_masters = vec![0; masters];
                for partition in 0..count {
                    let slot = usize::from(partitions.slot(partition));
                    assert_eq!(slot * count / SLOTS, partition);
                    of_masters[slot * masters / SLOTS] += 1;
                }
                let most = count.div_ceil(masters) + 1;
                assert!(
                    of_masters.iter().all(|it| *it <= most),
                    "{count}: {of_masters:?}"
                );
            }
        }
    }

    #[test]
    fn tags_stay_the_same_because_they_are_part_of_stored_keys() {
        let partitions = Partitions::new(16);
        let tags: Vec<_> = (0..16).map(|partition| partitions.tag(partition)).collect();
        let expected = "18 3 61 58 19 2 60 59 102 1 63 49 103 0 62 48";
        assert_eq!(tags.join(" "), expected);
    }

    #[test]
    fn keys_are_spread_evenly() {
        let partitions = Partitions::new(16);
        let mut counts = [0; 16];
        (0..16_000).for_each(|key: u32| counts[partitions.partition_of(&key.to_string())] += 1);
        assert!(
            counts.iter().all(|count| (900..=1_100).contains(count)),
            "{counts:?}"
        );
    }
}
