//! The wire format of histograms and decisions between processes.

use std::time::Duration;

use anyhow::bail;
use hdrhistogram::Histogram;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use super::counted::{Admitted, Offered};

/// Bytes of an entry.
const ENTRY: usize = 12;

/// A histogram with so many significant digits, as large as it needs to be.
pub(super) fn histogram(digits: u8) -> Histogram<u64> {
    let mut histogram = Histogram::new(digits).expect("a number of digits from 0 to 5");
    histogram.auto(true);
    histogram
}

/// Counts a value several times.
pub(super) fn note(histogram: &mut Histogram<u64>, value: u64, count: u64) {
    let noted = histogram.record_n(value, count);
    noted.expect("a histogram that grows takes every value");
}

/// A time as it is recorded.
pub(super) fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// Adds another histogram of as many digits.
pub(super) fn add(histogram: &mut Histogram<u64>, other: &Histogram<u64>) {
    for (value, count) in recorded(other) {
        note(histogram, value, count);
    }
}

fn recorded(histogram: &Histogram<u64>) -> impl Iterator<Item = (u64, u64)> {
    let values = histogram.iter_recorded();
    values.map(|it| (it.value_iterated_to(), it.count_at_value()))
}

/// The digits, and each value with its count.
pub(super) fn serialize<S: Serializer>(
    histogram: &Histogram<u64>,
    serializer: S,
) -> Result<S::Ok, S::Error> {
    let values: Vec<(u64, u64)> = recorded(histogram).collect();
    (histogram.sigfig(), values).serialize(serializer)
}

pub(super) fn deserialize<'de, D: Deserializer<'de>>(
    deserializer: D,
) -> Result<Histogram<u64>, D::Error> {
    let (digits, values) = <(u8, Vec<(u64, u64)>)>::deserialize(deserializer)?;
    let mut read = histogram(digits.min(5));
    for (value, count) in values {
        note(&mut read, value, count);
    }
    Ok(read)
}

/// Decisions and offers as bytes: the number of decisions, then entry behind entry.
pub(super) fn pack(decisions: &[Admitted], offered: &[Offered]) -> Vec<u8> {
    let count = decisions.len() + offered.len();
    let mut bytes = Vec::with_capacity(size_of::<u64>() + count * ENTRY);
    bytes.extend((decisions.len() as u64).to_le_bytes());
    for decision in decisions {
        bytes.extend(decision.at_us.to_le_bytes());
        bytes.extend(decision.key.to_le_bytes());
    }
    for offer in offered {
        for part in [offer.key, offer.bin, offer.checks] {
            bytes.extend(part.to_le_bytes());
        }
    }
    bytes
}

/// What [`pack`] has made.
pub(super) fn unpack(bytes: &[u8]) -> anyhow::Result<(Vec<Admitted>, Vec<Offered>)> {
    let Some((count, bytes)) = bytes.split_first_chunk() else {
        bail!("decisions that are cut off");
    };
    let (entries, rest) = bytes.as_chunks::<ENTRY>();
    let count = usize::try_from(u64::from_le_bytes(*count))?;
    if !rest.is_empty() || count > entries.len() {
        bail!("decisions that are cut off");
    }
    let (decisions, offered) = entries.split_at(count);
    let decisions = decisions.iter().map(|entry| {
        let [low, high, key] = parts(entry);
        let at_us = u64::from(high) << 32 | u64::from(low);
        Admitted { at_us, key }
    });
    let offered = offered.iter().map(|entry| {
        let [key, bin, checks] = parts(entry);
        Offered { key, bin, checks }
    });
    Ok((decisions.collect(), offered.collect()))
}

fn parts(entry: &[u8; ENTRY]) -> [u32; 3] {
    let (parts, _) = entry.as_chunks();
    [0, 1, 2].map(|index| u32::from_le_bytes(parts[index]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[derive(Serialize, Deserialize)]
    struct Line(#[serde(with = "super")] Histogram<u64>);

    #[test]
    fn histograms_arrive_as_they_were() {
        let mut sent = histogram(3);
        for value in [0, 1, 999, 1_000_000, 1_000_000, u64::MAX / 4] {
            note(&mut sent, value, 1);
        }
        let text = serde_json::to_string(&Line(sent.clone())).unwrap();
        let Line(read) = serde_json::from_str(&text).unwrap();
        assert_eq!(read, sent);
        let mut twice = read;
        add(&mut twice, &sent);
        assert_eq!(twice.len(), 2 * sent.len());
        assert_eq!(twice.max(), sent.max());
    }

    #[test]
    fn decisions_arrive_as_they_were() {
        let decisions = [1, u64::MAX].map(|at_us| Admitted { at_us, key: 7 });
        let offered = [Offered {
            key: 1,
            bin: 2,
            checks: 3,
        }];
        let bytes = pack(&decisions, &offered);
        let read = unpack(&bytes).unwrap();
        assert_eq!(read, (decisions.to_vec(), offered.to_vec()));
        assert!(unpack(&bytes[..bytes.len() - 1]).is_err());
        assert!(unpack(&bytes[..3]).is_err());
    }
}
