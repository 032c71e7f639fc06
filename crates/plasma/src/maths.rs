//! Logarithm, sine, cosine and the normal quantile, computed only with exactly specified
//! operations.
//!
//! The platform's mathematical library may round these differently on another system or after an
//! update, and one changed bit at the start changes every later dump. The functions here use only
//! operations whose rounding IEEE 754 specifies, and are accurate to a few units in the last place.
//! These are pure functions; there is no threading rule.

use std::f64::consts::{LN_2, SQRT_2, TAU};

/// `1 / (2 n + 1)`, the coefficients of artanh.
const ODD_INVERSES: [f64; 11] = {
    let mut table = [1.0; 11];
    let mut n = 1;
    while n < table.len() {
        table[n] = 1.0 / (2 * n + 1) as f64;
        n += 1;
    }
    table
};

/// The ratio of each term of the series of sine and cosine to the previous term, without the sign
/// and the square of the angle.
const TAYLOR_RATIOS: [[f64; 2]; 9] = {
    let mut table = [[0.0; 2]; 9];
    let mut n = 0;
    while n < table.len() {
        let even = (2 * n + 2) as f64;
        table[n] = [1.0 / (even * (even + 1.0)), 1.0 / ((even - 1.0) * even)];
        n += 1;
    }
    table
};

/// The natural logarithm of a positive, normal, finite number.
pub(crate) fn ln(x: f64) -> f64 {
    debug_assert!(x.is_normal() && x > 0.0);
    const MANTISSA: u64 = (1 << 52) - 1;
    let bits = x.to_bits();
    let mut exponent = (bits >> 52) as i32 - 1023;
    let mut mantissa = f64::from_bits((bits & MANTISSA) | 1.0f64.to_bits());
    if mantissa > SQRT_2 {
        mantissa *= 0.5;
        exponent += 1;
    }
    // ln m = 2 artanh((m - 1) / (m + 1)). The argument is below 0.172, so 11 terms reach the last
    // place.
    let s = (mantissa - 1.0) / (mantissa + 1.0);
    let square = s * s;
    let mut series = 0.0;
    for n in (0..11).rev() {
        series = series * square + ODD_INVERSES[n];
    }
    2.0 * s * series + f64::from(exponent) * LN_2
}

/// The sine and cosine of an angle in turns (1 is the full circle).
pub(crate) fn sin_cos_turns(turns: f64) -> (f64, f64) {
    // Reduce to at most an eighth of a turn from the nearest quarter. This is exact, because the
    // angle is in turns.
    let quarters = (turns * 4.0).round();
    let angle = (turns - quarters * 0.25) * TAU;
    let square = angle * angle;
    let (mut sin, mut cos) = (1.0, 1.0);
    for [of_sin, of_cos] in TAYLOR_RATIOS.iter().rev() {
        sin = 1.0 - sin * square * of_sin;
        cos = 1.0 - cos * square * of_cos;
    }
    sin *= angle;
    match quarters as i64 & 3 {
        0 => (sin, cos),
        1 => (cos, -sin),
        2 => (-sin, -cos),
        _ => (-cos, sin),
    }
}

/// The value that a standard normal variable is below with probability `p`, `0 < p < 1`.
///
/// M. J. Wichura, *Algorithm AS 241: the percentage points of the normal distribution* (1988):
/// rational approximations in the centre and in two ranges of the tails, accurate to about 16
/// digits.
pub(crate) fn normal_quantile(p: f64) -> f64 {
    const CENTRE: [[f64; 8]; 2] = [
        [
            3.3871328727963665,
            133.14166789178438,
            1971.5909503065513,
            13731.69376550946,
            45921.95393154987,
            67265.7709270087,
            33430.57558358813,
            2509.0809287301227,
        ],
        [
            1.0,
            42.31333070160091,
            687.1870074920579,
            5394.196021424751,
            21213.794301586597,
            39307.89580009271,
            28729.085735721943,
            5226.495278852854,
        ],
    ];
    const NEAR: [[f64; 8]; 2] = [
        [
            1.4234371107496835,
            4.630337846156546,
            5.769497221460691,
            3.6478483247632045,
            1.2704582524523684,
            0.2417807251774506,
            0.022723844989269184,
            0.0007745450142783414,
        ],
        [
            1.0,
            2.053191626637759,
            1.6763848301838038,
            0.6897673349851,
            0.14810397642748008,
            0.015198666563616457,
            0.0005475938084995345,
            1.0507500716444169e-09,
        ],
    ];
    const FAR: [[f64; 8]; 2] = [
        [
            6.657904643501103,
            5.463784911164114,
            1.7848265399172913,
            0.29656057182850487,
            0.026532189526576124,
            0.0012426609473880784,
            2.7115555687434876e-05,
            2.0103343992922881e-07,
        ],
        [
            1.0,
            0.599832206555888,
            0.1369298809227358,
            0.014875361290850615,
            0.0007868691311456133,
            1.8463183175100548e-05,
            1.421511758316446e-07,
            2.0442631033899397e-15,
        ],
    ];
    let ratio = |[above, below]: &[[f64; 8]; 2], x: f64| {
        let horner = |c: &[f64; 8]| c.iter().rev().fold(0.0, |sum, c| sum * x + c);
        horner(above) / horner(below)
    };
    let centred = p - 0.5;
    if centred.abs() <= 0.425 {
        return centred * ratio(&CENTRE, 0.180625 - centred * centred);
    }
    let tail = if centred < 0.0 { p } else { 1.0 - p };
    let r = (-ln(tail)).sqrt();
    let size = if r <= 5.0 {
        ratio(&NEAR, r - 1.6)
    } else {
        ratio(&FAR, r - 5.0)
    };
    if centred < 0.0 { -size } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn logarithms_agree_with_the_platform() {
        for i in 1..4000 {
            let x = f64::from(i) * 0.01 * 10f64.powi(i % 40 - 20);
            let (ours, theirs) = (ln(x), x.ln());
            assert!(
                (ours - theirs).abs() <= 1e-15 * theirs.abs().max(1.0),
                "ln {x}: {ours} {theirs}"
            );
        }
        assert_eq!(ln(1.0), 0.0);
    }

    #[test]
    fn sines_agree_with_the_platform() {
        for i in -3000..3000 {
            let turns = f64::from(i) / 1000.0;
            let (sin, cos) = sin_cos_turns(turns);
            let (s, c) = (turns * TAU).sin_cos();
            assert!((sin - s).abs() < 8e-15, "sin {turns}: {sin} {s}");
            assert!((cos - c).abs() < 8e-15, "cos {turns}: {cos} {c}");
            assert!((sin * sin + cos * cos - 1.0).abs() < 1e-15);
        }
        assert_eq!(sin_cos_turns(0.25), (1.0, 0.0));
        assert_eq!(sin_cos_turns(0.5), (0.0, -1.0));
    }

    #[test]
    fn quantiles_agree_with_known_ones() {
        let known = [
            (1e-100, -21.27345356096532),
            (1e-30, -11.464024688443617),
            (1e-12, -7.034483825301132),
            (1e-6, -4.753424308822899),
            (0.001, -3.090232306167813),
            (0.05, -1.6448536269514726),
            (0.07, -1.4757910281791702),
            (0.2, -0.8416212335729142),
            (0.5, 0.0),
            (0.9, 1.2815515655446008),
            (0.99, 2.3263478740408408),
        ];
        for (p, quantile) in known {
            let ours = normal_quantile(p);
            assert!((ours - quantile).abs() < 1e-13, "{p}: {ours} {quantile}");
        }
    }
}
