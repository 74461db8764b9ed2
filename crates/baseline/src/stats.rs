//! Statistics of the samples of a round, and of several rounds.

/// The figures of one round, in the unit of its samples.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Summary {
    /// How many samples there were.
    pub samples: usize,
    /// Half are below.
    pub median: f64,
    /// 99 of 100 are at or below.
    pub p99: f64,
    /// 999 of 1,000 are at or below.
    pub p999: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
    /// The arithmetic mean.
    pub mean: f64,
}

impl Summary {
    /// Summarises samples such as round trips in nanoseconds; all zero if there are none.
    #[must_use]
    pub fn of(samples: &[u64]) -> Self {
        let mut sorted = samples.to_vec();
        sorted.sort_unstable();
        let (Some(&low), Some(&high)) = (sorted.first(), sorted.last()) else { return Self::default() };
        let total: u128 = sorted.iter().map(|&sample| u128::from(sample)).sum();
        Self {
            samples: sorted.len(),
            median: median_of_sorted(&sorted, |&sample| sample as f64),
            p99: rank(&sorted, 0.99) as f64,
            p999: rank(&sorted, 0.999) as f64,
            low: low as f64,
            high: high as f64,
            mean: total as f64 / sorted.len() as f64,
        }
    }

    /// The same in another unit, such as half (one way) and in microseconds.
    #[must_use]
    pub fn scaled(self, factor: f64) -> Self {
        Self {
            samples: self.samples,
            median: self.median * factor,
            p99: self.p99 * factor,
            p999: self.p999 * factor,
            low: self.low * factor,
            high: self.high * factor,
            mean: self.mean * factor,
        }
    }
}

/// The spread of one figure over interleaved rounds.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Rounds {
    /// How many rounds there were.
    pub rounds: usize,
    /// Half of the rounds are below.
    pub median: f64,
    /// The smallest.
    pub low: f64,
    /// The largest.
    pub high: f64,
}

impl Rounds {
    /// Summarises one figure per round; all zero if there are none.
    #[must_use]
    pub fn of(figures: &[f64]) -> Self {
        let mut sorted = figures.to_vec();
        sorted.sort_unstable_by(f64::total_cmp);
        let (Some(&low), Some(&high)) = (sorted.first(), sorted.last()) else { return Self::default() };
        Self { rounds: sorted.len(), median: median_of_sorted(&sorted, |&figure| figure), low, high }
    }

    /// Ratios formed inside each round, since machines drift between rounds.
    #[must_use]
    pub fn of_ratios(figures: &[f64], limits: &[f64]) -> Self {
        let ratios: Vec<f64> = figures.iter().zip(limits).map(|(figure, limit)| figure / limit).collect();
        Self::of(&ratios)
    }
}

/// The median of some figures; zero if there are none.
#[must_use]
pub fn median(figures: &[f64]) -> f64 {
    Rounds::of(figures).median
}

fn median_of_sorted<T>(sorted: &[T], value: impl Fn(&T) -> f64) -> f64 {
    let middle = sorted.len() / 2;
    if sorted.len() % 2 == 1 {
        value(&sorted[middle])
    } else {
        f64::midpoint(value(&sorted[middle - 1]), value(&sorted[middle]))
    }
}

/// The smallest sample with at least `share` of all samples at or below it.
fn rank(sorted: &[u64], share: f64) -> u64 {
    // The product may be slightly above a whole number; no sample must be skipped for that.
    let rank = (share * sorted.len() as f64 - 1e-6).ceil() as usize;
    sorted[rank.clamp(1, sorted.len()) - 1]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn percentiles_of_a_thousand() {
        let samples: Vec<u64> = (1..=1000).rev().collect();
        let summary = Summary::of(&samples);
        assert_eq!((summary.median, summary.p99, summary.p999), (500.5, 990.0, 999.0));
        assert_eq!((summary.low, summary.high, summary.mean), (1.0, 1000.0, 500.5));
    }

    #[test]
    fn few_samples_give_their_extremes() {
        let summary = Summary::of(&[7, 3]);
        assert_eq!((summary.median, summary.p99, summary.p999), (5.0, 7.0, 7.0));
        assert_eq!(Summary::of(&[4]).p99, 4.0);
        assert_eq!(Summary::of(&[]), Summary::default());
    }

    #[test]
    fn scaling_keeps_the_count() {
        let half = Summary::of(&[2000, 4000, 6000]).scaled(0.5 / 1000.0);
        assert_eq!((half.samples, half.median, half.high), (3, 2.0, 3.0));
    }

    #[test]
    fn ratios_are_formed_inside_a_round() {
        let rounds = Rounds::of_ratios(&[2.0, 6.0, 30.0], &[1.0, 2.0, 10.0]);
        assert_eq!((rounds.median, rounds.low, rounds.high), (3.0, 2.0, 3.0));
        assert_eq!(median(&[]), 0.0);
    }
}
