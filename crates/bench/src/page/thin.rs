//! Fewer values than seconds, without losing the worst of them.
//!
//! Invariants: the lowest and the highest value of all seconds are the lowest and the highest of a
//! bin; bins are in order, and every second is in one.
//!
//! Threading: pure functions.

/// Some seconds in a row.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Bin {
    /// Where it begins, in seconds.
    pub from: f64,
    /// Where it ends, in seconds.
    pub to: f64,
    /// Its lowest value.
    pub low: f64,
    /// Its highest value.
    pub high: f64,
    /// The mean of its values.
    pub mean: f64,
    /// Whether the lowest value came before the highest one.
    pub is_low_first: bool,
}

impl Bin {
    /// The same bins with one value each.
    pub fn flat(bins: &[Bin], value: fn(&Bin) -> f64) -> Vec<Bin> {
        let flat = |bin: &Bin| Bin {
            low: value(bin),
            high: value(bin),
            ..*bin
        };
        bins.iter().map(flat).collect()
    }

    /// The lowest and the highest value, in the order in which they occurred.
    pub fn in_order(&self) -> (f64, f64) {
        match self.is_low_first {
            true => (self.low, self.high),
            false => (self.high, self.low),
        }
    }
}

/// How many seconds a bin has, so that `seconds` of them make at most `bins`.
pub fn width(seconds: usize, bins: usize) -> usize {
    seconds.div_ceil(bins.max(1)).max(1)
}

/// Bins of `width` seconds over values by second. Values that are no numbers count as 0.
pub fn bins(values: &[f64], width: usize) -> Vec<Bin> {
    let chunks = values.chunks(width.max(1)).enumerate();
    chunks
        .map(|(n, chunk)| {
            let from = n * width.max(1);
            bin(from as f64, chunk)
        })
        .collect()
}

fn bin(from: f64, values: &[f64]) -> Bin {
    let number = |n: usize| {
        if values[n].is_finite() {
            values[n]
        } else {
            0.0
        }
    };
    let (mut low, mut high) = (0, 0);
    for n in 1..values.len() {
        if number(n) < number(low) {
            low = n;
        }
        if number(n) > number(high) {
            high = n;
        }
    }
    Bin {
        from,
        to: from + values.len() as f64,
        low: number(low),
        high: number(high),
        mean: (0..values.len()).map(number).sum::<f64>() / values.len().max(1) as f64,
        is_low_first: low <= high,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn thinning_keeps_the_worst_and_the_best_second() {
        let mut values = vec![100.0; 10_000];
        (values[4321], values[7654]) = (0.0, 900.0);
        let bins = bins(&values, width(values.len(), 1000));
        assert_eq!(bins.len(), 1000);
        assert_eq!((bins[432].low, bins[432].high), (0.0, 100.0));
        assert_eq!((bins[765].low, bins[765].high), (100.0, 900.0));
        assert!(bins.windows(2).all(|two| two[0].to == two[1].from));
        assert_eq!(bins[999].to, 10_000.0);
    }

    #[test]
    fn flat_bins_have_one_value() {
        let all = bins(&[1.0, 3.0, 5.0], 2);
        let mean = Bin::flat(&all, |bin| bin.mean);
        assert_eq!(mean[0].in_order(), (2.0, 2.0));
        assert_eq!(mean[1].in_order(), (5.0, 5.0));
    }

    #[test]
    fn the_order_within_a_bin_is_kept() {
        let two = bins(&[5.0, 1.0, 1.0, 5.0, f64::NAN], 2);
        assert_eq!(two[0].in_order(), (5.0, 1.0));
        assert_eq!(two[1].in_order(), (1.0, 5.0));
        assert_eq!(two[2].in_order(), (0.0, 0.0));
        assert_eq!(width(0, 1000), 1);
        assert!(bins(&[], 1).is_empty());
    }
}
