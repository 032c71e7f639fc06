//! Tests of the zipfian generators: the first values of YCSB, the shape, bounds and growth.

use super::*;
use proptest::prelude::*;

/// `java.util.Random.nextDouble`, which YCSB draws from, with YCSB's seed 1.
struct JavaRandom(u64);

impl JavaRandom {
    fn new(seed: u64) -> JavaRandom {
        JavaRandom((seed ^ 0x5_deec_e66d) & ((1 << 48) - 1))
    }

    fn bits(&mut self, bits: u32) -> u64 {
        self.0 = (self.0.wrapping_mul(0x5_deec_e66d) + 0xb) & ((1 << 48) - 1);
        self.0 >> (48 - bits)
    }

    fn unit(&mut self) -> f64 {
        let high = self.bits(26) << 27;
        (high + self.bits(27)) as f64 / (1u64 << 53) as f64
    }
}

/// YCSB's constructor draws one rank that it does not use.
fn first_ranks(zipfian: &Zipfian) -> Vec<u64> {
    let mut random = JavaRandom::new(1);
    random.unit();
    (0..24).map(|_| zipfian.rank(random.unit())).collect()
}

fn sized(theta: f64, items: u64) -> Zipfian {
    let mut zipfian = Zipfian::new(theta).unwrap();
    zipfian.resize(items);
    zipfian
}

/// The first ranks of YCSB's `ZipfianGenerator(1000)` and `ZipfianGenerator(1000000, 0.5)`. A Java
/// program with the formulas of the original computed them on OpenJDK 17.
#[test]
fn the_first_ranks_are_those_of_ycsb() {
    let reference = [
        10, 2, 5, 785, 0, 761, 637, 673, 623, 9, 6, 4, 23, 0, 177, 75, 1, 8, 1, 99, 230, 0, 26, 144,
    ];
    assert_eq!(first_ranks(&sized(0.99, 1000)), reference);
    let reference = [
        168_437, 43_330, 110_949, 936_586, 44, 928_766, 883_410, 897_234, 878_189, 158_015,
        121_023, 86_702, 256_805, 13_563, 593_923, 435_710, 24_717, 143_300, 19_668, 483_190,
        648_567, 31, 273_950, 553_726,
    ];
    assert_eq!(first_ranks(&sized(0.5, 1_000_000)), reference);
}

/// The same for the generator within `ScrambledZipfianGenerator(100000)`, and for its records.
/// Large ranks differ between libraries in their last digits, since a power of 100 multiplies the
/// rounding.
#[test]
fn the_first_scrambled_records_are_those_of_ycsb() {
    let scrambled = ScrambledZipfian::new(0.99, 100_000).unwrap();
    let ranks = first_ranks(&scrambled.ranks);
    let reference = [
        15_553,
        101,
        2339,
        5_032_988_115,
        0,
        4_615_496_870,
        2_768_531_142,
        3_240_526_778,
        2_607_717_349,
        11_367,
        3370,
        895,
        156_922,
        9,
        67_936_234,
        5_582_190,
        27,
        7156,
        17,
        12_405_242,
        146_853_125,
        0,
        232_677,
        37_507_826,
    ];
    for (rank, reference) in ranks.iter().zip(reference) {
        assert!((*rank as f64 / reference as f64 - 1.0).abs() < 1e-9 || *rank == reference);
    }
    let records: Vec<u64> = [0, 9, 27, 17, 101]
        .iter()
        .map(|&r| ycsb_hash(r) % 100_000)
        .collect();
    assert_eq!(records, [77_211, 2964, 96_834, 12_308, 18_016]);
}

/// The cumulative probabilities of Zipf's law, by direct summation.
fn zipf_law(items: usize, theta: f64) -> Vec<f64> {
    let terms: Vec<f64> = (1..=items).map(|i| (i as f64).powf(-theta)).collect();
    let all: f64 = terms.iter().sum();
    let mut sum = 0.0;
    terms
        .iter()
        .map(|term| {
            sum += term;
            sum / all
        })
        .collect()
}

/// The largest difference between the share of draws up to a rank and its probability.
fn largest_deviation(draws: &[u64], cumulative: &[f64]) -> f64 {
    let mut counts = vec![0u64; cumulative.len()];
    draws.iter().for_each(|&rank| counts[rank as usize] += 1);
    let mut seen = 0;
    let deviations = counts.iter().zip(cumulative).map(|(count, probability)| {
        seen += count;
        (seen as f64 / draws.len() as f64 - probability).abs()
    });
    deviations.fold(0.0, f64::max)
}

fn draws(theta: f64, items: u64, count: usize) -> Vec<u64> {
    let mut zipfian = Zipfian::new(theta).unwrap();
    let mut random = Random::new(11, 0);
    (0..count)
        .map(|_| zipfian.next(&mut random, items))
        .collect()
}

#[test]
fn ranks_follow_zipfs_law_as_closely_as_grays_formula_does() {
    for (theta, items, bound) in [(0.99, 1000, 0.025), (0.99, 100, 0.03), (0.5, 1000, 0.01)] {
        let draws = draws(theta, items, 200_000);
        // Samples of 200,000 deviate by more than 0.0072 once in a billion (Dvoretzky, Kiefer,
        // Wolfowitz, Massart); the rest is the error of the formula.
        let deviation = largest_deviation(&draws, &zipf_law(items as usize, theta));
        assert!(deviation < bound + 0.0072, "{theta} {items}: {deviation}");
    }
}

#[test]
fn the_first_two_ranks_have_exactly_their_probabilities() {
    let draws = draws(0.99, 10_000, 400_000);
    let law = zipf_law(10_000, 0.99);
    for (rank, probability) in [(0, law[0]), (1, law[1] - law[0])] {
        let share = draws.iter().filter(|&&r| r == rank).count() as f64 / draws.len() as f64;
        let deviation = (probability * (1.0 - probability) / draws.len() as f64).sqrt();
        assert!(
            (share - probability).abs() < 5.0 * deviation,
            "{rank}: {share}, {probability}"
        );
    }
}

/// Gray's formula between ranks: the share of draws up to rank `r` inverts the power.
#[test]
fn many_items_follow_the_published_formula() {
    let items = 50_000_000u64;
    let draws = draws(0.99, items, 200_000);
    let zeta = Zeta::new(0.99).of(items).zeta;
    let eta = (1.0 - (2.0 / items as f64).powf(0.01)) / (1.0 - (1.0 + 0.5f64.powf(0.99)) / zeta);
    for ranks in [3u64, 10, 1000, 1_000_000, 30_000_000] {
        let share = draws.iter().filter(|&&r| r < ranks).count() as f64 / draws.len() as f64;
        let expected = 1.0 - (1.0 - (ranks as f64 / items as f64).powf(0.01)) / eta;
        assert!(
            (share - expected).abs() < 0.0072,
            "{ranks}: {share}, {expected}"
        );
    }
}

#[test]
fn one_item_and_no_item_give_zero() {
    let mut random = Random::new(1, 0);
    let mut zipfian = Zipfian::new(0.99).unwrap();
    let mut scrambled = ScrambledZipfian::new(0.99, 0).unwrap();
    let mut latest = Latest::new(0.99).unwrap();
    for items in [0, 1, 0, 1] {
        for _ in 0..100 {
            assert_eq!(zipfian.next(&mut random, items), 0);
            assert_eq!(scrambled.next(&mut random, items), 0);
            assert_eq!(latest.next(&mut random, items), 0);
        }
    }
}

#[test]
fn thetas_out_of_range_are_refused() {
    for theta in [0.0, 1.0, -0.5, 1.2, f64::NAN, f64::INFINITY] {
        let error = Zipfian::new(theta).unwrap_err().to_string();
        assert!(error.contains("above 0 and below 1"), "{error}");
    }
}

#[test]
fn a_growing_number_of_items_gives_the_same_as_a_new_generator() {
    let mut grown = Zipfian::new(0.99).unwrap();
    let mut random = Random::new(2, 0);
    (1..20_000).for_each(|items| assert!(grown.next(&mut random, items) < items));
    let new = sized(0.99, 19_999);
    for i in 0..1000 {
        let unit = f64::from(i) / 1000.0;
        assert_eq!(grown.rank(unit), new.rank(unit));
    }
}

#[test]
fn hot_records_stay_while_inserts_are_expected() {
    let hottest = |records: u64| {
        let mut scrambled = ScrambledZipfian::new(0.99, 12_000).unwrap();
        let mut random = Random::new(4, 0);
        let mut counts = vec![0u32; 12_000];
        (0..100_000).for_each(|_| counts[scrambled.next(&mut random, records) as usize] += 1);
        (0..12_000).max_by_key(|&i| counts[i]).unwrap()
    };
    // Rank 0 belongs to the record of its hash.
    let expected = (ycsb_hash(0) % 12_000) as usize;
    assert_eq!(
        [hottest(10_000), hottest(11_000), hottest(12_000)],
        [expected; 3]
    );
}

#[test]
fn scrambled_records_are_spread_and_skewed() {
    let records = 1000u64;
    let mut scrambled = ScrambledZipfian::new(0.99, records).unwrap();
    let mut random = Random::new(4, 0);
    let mut counts = vec![0u32; records as usize];
    (0..200_000).for_each(|_| counts[scrambled.next(&mut random, records) as usize] += 1);
    // Rank 0 alone has 1 / 26.469 = 3.78 % of the draws.
    let hottest = f64::from(*counts.iter().max().unwrap()) / 2e5;
    assert!((0.037..0.045).contains(&hottest), "{hottest}");
    // The ranks beyond the first thousand are about half of the draws and reach every record.
    assert!(counts.iter().all(|&c| c > 20));
    let lower: u32 = counts[..500].iter().sum();
    assert!((60_000..140_000).contains(&lower), "{lower}");
}

#[test]
fn the_newest_record_is_the_most_frequent_one() {
    let mut latest = Latest::new(0.99).unwrap();
    let mut random = Random::new(4, 0);
    for records in [10u64, 1000, 1001, 50_000] {
        let draws: Vec<u64> = (0..20_000)
            .map(|_| latest.next(&mut random, records))
            .collect();
        assert!(draws.iter().all(|&r| r < records));
        let newest = draws.iter().filter(|&&r| r == records - 1).count() as f64 / 2e4;
        let expected = 1.0 / Zeta::new(0.99).of(records).zeta;
        assert!(
            (newest - expected).abs() < 0.02,
            "{records}: {newest}, {expected}"
        );
    }
    let zero = (0..20_000)
        .filter(|_| latest.next(&mut random, 10) == 0)
        .count();
    assert!(zero > 0);
}

#[test]
fn a_redraw_ends_although_almost_no_record_exists() {
    let mut scrambled = ScrambledZipfian::new(0.99, u64::MAX).unwrap();
    let mut random = Random::new(4, 0);
    assert!((0..100).all(|_| scrambled.next(&mut random, 3) < 3));
}

proptest! {
    #[test]
    fn draws_keep_their_bounds(seed: u64, items in 1u64.., theta in 0.0001f64..0.9999) {
        let mut random = Random::new(seed, 0);
        prop_assert!(Zipfian::new(theta).unwrap().next(&mut random, items) < items);
        prop_assert!(Latest::new(theta).unwrap().next(&mut random, items) < items);
        let mut scrambled = ScrambledZipfian::new(theta, 100).unwrap();
        prop_assert!(scrambled.next(&mut random, items) < items);
    }

    #[test]
    fn ranks_grow_with_the_drawn_number(
        items in 1u64..1 << 40, a in 0.0f64..1.0, b in 0.0f64..1.0,
    ) {
        let zipfian = sized(0.99, items);
        prop_assert!(zipfian.rank(a.min(b)) <= zipfian.rank(a.max(b)));
    }
}
