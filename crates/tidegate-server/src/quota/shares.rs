//! How a rate is divided among Envoys: by demand, with a floor.

/// The part of the rate that is divided equally, whatever the demand.
const FLOOR: f64 = 0.05;

/// What an Envoy is given above its demand while others compete for the limit.
const HEADROOM: f64 = 1.25;

/// Divides `rate` among Envoys with these demands, in requests per second; `None` is a
/// demand that is not known yet and counts as an equal share.
///
/// All of it is given away, unless `spare`: then nobody gets more than a quarter above their
/// demand and the floor.
#[must_use]
pub(super) fn divide(rate: f64, demands: &[Option<f64>], spare: bool) -> Vec<f64> {
    let count = demands.len() as f64;
    let equal = rate / count.max(1.0);
    let floor = equal * FLOOR;
    let demand = |it: &Option<f64>| it.unwrap_or(equal);
    let total: f64 = demands.iter().map(demand).sum();
    let wanted = floor * count + total * HEADROOM;
    let share = |it: &Option<f64>| match () {
        () if spare && wanted <= rate => floor + demand(it) * HEADROOM,
        () if total > 0.0 => floor + (rate - floor * count) * demand(it) / total,
        () => equal,
    };
    demands.iter().map(share).collect()
}

#[cfg(test)]
mod tests {
    use super::divide;

    #[test]
    fn shares_follow_demand_above_a_floor() {
        for (demands, spare, expected) in [
            (vec![], false, vec![]),
            (vec![None], false, vec![100.0]),
            (vec![Some(0.0)], false, vec![100.0]),
            (vec![Some(300.0), Some(100.0)], false, vec![73.75, 26.25]),
            (vec![Some(300.0), Some(0.0)], true, vec![97.5, 2.5]),
            (vec![Some(8.0), Some(0.0)], true, vec![12.5, 2.5]),
            (vec![Some(50.0), None], false, vec![50.0, 50.0]),
        ] {
            let shares = divide(100.0, &demands, spare);
            assert_eq!(shares, expected, "{demands:?}, spare: {spare}");
        }
    }
}
