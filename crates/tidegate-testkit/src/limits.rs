//! Random limits for property tests, the ends of the ranges included.

use std::time::Duration;

use proptest::prelude::*;
use tidegate::{Algorithm, Align, Limit, LimitSpec, Rate};

fn window_us() -> impl Strategy<Value = u64> {
    let longest = 366 * 86_400_000_000_u64;
    prop_oneof![
        1_000..=1_100_u64,
        1_000..=10_000_000_u64,
        Just(60_000_000_u64),
        Just(longest),
        (longest - 3)..=longest,
        // Every order of magnitude.
        (10_u32..45).prop_flat_map(move |bits| {
            ((1_u64 << (bits - 1)).max(1_000)..=(1 << bits).min(longest)).boxed()
        }),
    ]
}

pub fn number(most: u32) -> impl Strategy<Value = u32> {
    prop_oneof![
        4 => 1..=12_u32,
        2 => 1..=1_000_u32,
        1 => Just(most),
        1 => most - 3..=most,
        1 => 1..=most,
    ]
}

fn spec(most: u32) -> impl Strategy<Value = LimitSpec> {
    (number(most), window_us()).prop_map(|(requests, window_us)| {
        let rate = Rate::new(requests.into(), Duration::from_micros(window_us));
        LimitSpec::new(rate.expect("in range"))
    })
}

fn counted_by(algorithm: Algorithm, align: Align, most: u32) -> BoxedStrategy<Limit> {
    spec(most)
        .prop_map(move |spec| LimitSpec {
            algorithm,
            align,
            ..spec
        })
        .prop_map(|spec| spec.build().expect("in range"))
        .boxed()
}

pub fn token_bucket() -> BoxedStrategy<Limit> {
    let burst = prop::option::of(number(u32::MAX));
    (spec(u32::MAX), burst)
        .prop_filter_map("refills within a hundred years", |(spec, burst)| {
            let burst = burst.map(u64::from);
            LimitSpec { burst, ..spec }.build().ok()
        })
        .boxed()
}

pub fn strict() -> BoxedStrategy<Limit> {
    (spec(u32::MAX), number(u32::MAX))
        .prop_filter_map("a burst below the requests", |(spec, burst)| {
            let burst = u64::from(burst) % u64::from(spec.rate.requests());
            LimitSpec {
                burst: Some(burst),
                strict: true,
                ..spec
            }
            .build()
            .ok()
        })
        .boxed()
}

pub fn fixed_first() -> BoxedStrategy<Limit> {
    counted_by(Algorithm::FixedWindow, Align::First, u32::MAX)
}

pub fn fixed_epoch() -> BoxedStrategy<Limit> {
    counted_by(Algorithm::FixedWindow, Align::Epoch, u32::MAX)
}

pub fn sliding_window() -> BoxedStrategy<Limit> {
    counted_by(Algorithm::SlidingWindow, Align::First, 1 << 28)
}

pub fn sliding_log() -> BoxedStrategy<Limit> {
    counted_by(Algorithm::SlidingLog, Align::First, 1_000_000)
}

pub fn any() -> impl Strategy<Value = Limit> {
    let mut limits = vec![token_bucket(), strict(), fixed_epoch()];
    // The others have nothing but a rate.
    let others = Algorithm::counting().filter(|it| *it != Algorithm::TokenBucket);
    limits.extend(others.map(|it| counted_by(it, Align::First, it.profile().max_requests)));
    prop::strategy::Union::new(limits)
}
