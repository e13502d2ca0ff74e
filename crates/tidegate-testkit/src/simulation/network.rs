//! The network: every message takes its own time, some come twice, some not at all.

use std::time::Duration;

use super::Random;

/// How bad it is.
#[derive(Debug, Clone, Copy)]
pub struct Network {
    /// The usual latency of one way, and how much more it may be.
    pub latency_us: u64,
    pub spread_us: u64,
    /// In a thousand messages.
    pub slow: u64,
    pub lost: u64,
    pub repeated: u64,
}

impl Network {
    pub const PERFECT: Self = Self {
        latency_us: 200,
        spread_us: 0,
        slow: 0,
        lost: 0,
        repeated: 0,
    };

    /// Some network, from well to barely working.
    pub fn some(random: &mut Random) -> Self {
        let trouble = random.one_of(&[0, 0, 5, 50]);
        Self {
            latency_us: random.one_of(&[20, 200, 2_000, 15_000]),
            spread_us: random.one_of(&[0, 100, 5_000]),
            slow: random.below(trouble + 1),
            lost: random.below(trouble + 1),
            repeated: random.below(trouble + 1),
        }
    }

    /// When the copies of a message arrive, from now.
    pub fn send(&self, random: &mut Random) -> Vec<Duration> {
        let mut copies = match random.chance(self.lost) {
            true => 0,
            false => 1,
        };
        copies += u64::from(random.chance(self.repeated));
        let mut delay = || {
            let mut us = self.latency_us + random.below(self.spread_us + 1);
            if random.chance(self.slow) {
                us *= random.within(2, 50);
            }
            Duration::from_micros(us)
        };
        (0..copies).map(|_| delay()).collect()
    }
}
