//! A picture of counts as a PNG file in a data URI.
//!
//! PNG with a palette (PNG specification, chunks IHDR, PLTE, IDAT, IEND). Its deflate stream (RFC 1951) is one block with the fixed codes,
//! and the only repetition it looks for is that of the byte before, or of the row above: pictures of counts are empty for the most part,
//! and this takes most of what there is to be had.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;

/// Colours of few to many: dark violet to pale yellow, even steps of lightness that tell apart whatever colours one sees (after "inferno" of
/// N. Smith and S. van der Walt).
const COLOURS: [[u8; 3]; 12] = [
    [8, 8, 20],
    [28, 16, 68],
    [66, 10, 104],
    [102, 21, 110],
    [137, 34, 106],
    [171, 48, 96],
    [204, 66, 78],
    [229, 92, 48],
    [246, 126, 20],
    [252, 165, 10],
    [246, 208, 70],
    [252, 255, 164],
];

/// The colour of a share from 0 to 1.
pub fn colour(share: f64) -> [u8; 3] {
    let at = share.clamp(0.0, 1.0) * (COLOURS.len() - 1) as f64;
    let below = (at as usize).min(COLOURS.len() - 2);
    let part = at - below as f64;
    std::array::from_fn(|i| {
        let (a, b) = (
            f64::from(COLOURS[below][i]),
            f64::from(COLOURS[below + 1][i]),
        );
        (a + (b - a) * part).round() as u8
    })
}

/// Shades that a picture uses; few enough that neighbours are often the same.
const SHADES: usize = 48;

/// The picture as a data URI. `most` has the brightest colour; any count at all is told from none.
pub fn data_uri(counts: &[u32], columns: usize, most: u32) -> String {
    let mut png = b"\x89PNG\r\n\x1a\n".to_vec();
    let columns = columns.clamp(1, 1 << 16);
    let rows = counts.len() / columns;
    let mut header = Vec::new();
    header.extend((columns as u32).to_be_bytes());
    header.extend((rows as u32).to_be_bytes());
    // Eight bits a pixel, by palette; the one compression, the one set of filters, not interlaced.
    header.extend([8, 3, 0, 0, 0]);
    chunk(&mut png, b"IHDR", &header);
    let palette: Vec<u8> = (0..SHADES)
        .flat_map(|n| colour(n as f64 / (SHADES - 1) as f64))
        .collect();
    chunk(&mut png, b"PLTE", &palette);
    let mut pixels = Vec::with_capacity(rows * (columns + 1));
    for row in counts.chunks_exact(columns) {
        pixels.push(0); // filter: none
        pixels.extend(row.iter().map(|count| shade(*count, most)));
    }
    chunk(&mut png, b"IDAT", &zlib(&pixels, columns + 1));
    chunk(&mut png, b"IEND", &[]);
    format!("data:image/png;base64,{}", STANDARD.encode(png))
}

fn shade(count: u32, most: u32) -> u8 {
    if count == 0 {
        return 0;
    }
    // The root shows thin regions.
    let share = (f64::from(count) / f64::from(most.max(1))).min(1.0).sqrt();
    ((share * (SHADES - 1) as f64).round() as u8).max(1)
}

fn chunk(png: &mut Vec<u8>, kind: &[u8; 4], data: &[u8]) {
    png.extend((data.len() as u32).to_be_bytes());
    let from = png.len();
    png.extend(kind);
    png.extend(data);
    let sum = crc(&png[from..]);
    png.extend(sum.to_be_bytes());
}

/// CRC-32 of ISO 3309, bit by bit: pictures are small.
fn crc(bytes: &[u8]) -> u32 {
    let mut crc = !0u32;
    for byte in bytes {
        crc ^= u32::from(*byte);
        for _ in 0..8 {
            crc = (crc >> 1) ^ (0xedb8_8320 & (crc & 1).wrapping_neg());
        }
    }
    !crc
}

fn adler(bytes: &[u8]) -> u32 {
    let (mut a, mut b) = (1u32, 0u32);
    for byte in bytes {
        a = (a + u32::from(*byte)) % 65_521;
        b = (b + a) % 65_521;
    }
    b << 16 | a
}

/// Bits of a deflate stream, the lowest first.
#[derive(Default)]
struct Bits {
    out: Vec<u8>,
    held: u64,
    count: u32,
}

impl Bits {
    /// A number.
    fn number(&mut self, value: u32, bits: u32) {
        self.held |= u64::from(value) << self.count;
        self.count += bits;
        while self.count >= 8 {
            self.out.push(self.held as u8);
            self.held >>= 8;
            self.count -= 8;
        }
    }

    /// A Huffman code, which begins with its highest bit.
    fn code(&mut self, code: u32, bits: u32) {
        self.number(code.reverse_bits() >> (32 - bits), bits);
    }

    /// A literal or length, in the fixed code (RFC 1951, 3.2.6).
    fn symbol(&mut self, symbol: u32) {
        match symbol {
            0..144 => self.code(0x30 + symbol, 8),
            144..256 => self.code(0x190 + symbol - 144, 9),
            256..280 => self.code(symbol - 256, 7),
            _ => self.code(0xc0 + symbol - 280, 8),
        }
    }

    /// A repetition of 3 to 258 bytes from `distance` before (RFC 1951, 3.2.5).
    fn repetition(&mut self, length: usize, distance: usize) {
        const LENGTHS: [usize; 29] = [
            3, 4, 5, 6, 7, 8, 9, 10, 11, 13, 15, 17, 19, 23, 27, 31, 35, 43, 51, 59, 67, 83, 99,
            115, 131, 163, 195, 227, 258,
        ];
        let n = LENGTHS.partition_point(|least| *least <= length) - 1;
        self.symbol(257 + n as u32);
        let extra = if (8..28).contains(&n) {
            n as u32 / 4 - 1
        } else {
            0
        };
        self.number((length - LENGTHS[n]) as u32, extra);
        // Distances: codes 0 to 3 are 1 to 4; from there two codes an octave.
        if distance <= 4 {
            self.code(distance as u32 - 1, 5);
        } else {
            let from = distance as u32 - 1;
            let octave = 31 - from.leading_zeros();
            let half = from >> (octave - 1) & 1;
            self.code(2 * octave + half, 5);
            self.number(from & ((1 << (octave - 1)) - 1), octave - 1);
        }
    }
}

/// A zlib stream (RFC 1950) of rows of `stride` bytes.
fn zlib(bytes: &[u8], stride: usize) -> Vec<u8> {
    let mut bits = Bits::default();
    // The last block, with fixed codes.
    bits.number(1, 1);
    bits.number(1, 2);
    let mut at = 0;
    while at < bytes.len() {
        let run = |distance: usize| {
            if distance > at || distance > 32_768 {
                return 0;
            }
            let same = bytes[at..]
                .iter()
                .zip(&bytes[at - distance..])
                .take(258)
                .take_while(|(a, b)| a == b);
            same.count()
        };
        let (before, above) = (run(1), run(stride));
        let (length, distance) = if above > before {
            (above, stride)
        } else {
            (before, 1)
        };
        if length >= 3 {
            bits.repetition(length, distance);
            at += length;
        } else {
            bits.symbol(u32::from(bytes[at]));
            at += 1;
        }
    }
    bits.symbol(256);
    bits.number(0, (8 - bits.count) % 8);
    let mut stream = vec![0x78, 0x01];
    stream.append(&mut bits.out);
    stream.extend(adler(bytes).to_be_bytes());
    stream
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sums_are_those_of_the_specifications() {
        assert_eq!(crc(b"123456789"), 0xcbf4_3926);
        assert_eq!(crc(b"IEND"), 0xae42_6082);
        assert_eq!(adler(b"Wikipedia"), 0x11e6_0398);
    }

    /// A decoder of what is written here, from the specification: fixed codes, one block.
    fn inflate(stream: &[u8]) -> Vec<u8> {
        assert_eq!(&stream[..2], [0x78, 0x01]);
        let data = &stream[2..stream.len() - 4];
        let mut at = 0;
        let mut bit = || {
            let value = u32::from(data[at / 8] >> (at % 8) & 1);
            at += 1;
            value
        };
        assert_eq!((bit(), bit(), bit()), (1, 1, 0));
        let mut out: Vec<u8> = Vec::new();
        loop {
            let mut code = (0..7).fold(0, |code, _| code << 1 | bit());
            let symbol = if code < 24 {
                256 + code
            } else {
                code = code << 1 | bit();
                match code {
                    0x30..0xc0 => code - 0x30,
                    0xc0..0xc8 => 280 + code - 0xc0,
                    _ => (code << 1 | bit()) - 0x190 + 144,
                }
            };
            if symbol < 256 {
                out.push(symbol as u8);
                continue;
            }
            if symbol == 256 {
                break;
            }
            let mut number = |bits: u32| (0..bits).fold(0, |n, i| n | bit() << i);
            let length = match symbol {
                257..265 => symbol - 254,
                285 => 258,
                _ => {
                    let extra = (symbol - 261) / 4;
                    (((symbol - 261) % 4 + 4) << extra) + 3 + number(extra)
                }
            };
            let code = (0..5).fold(0, |code, _| code << 1 | number(1));
            let distance = match code {
                0..4 => code + 1,
                _ => {
                    let extra = code / 2 - 1;
                    ((2 + code % 2) << extra) + 1 + number(extra)
                }
            };
            for _ in 0..length {
                out.push(out[out.len() - distance as usize]);
            }
        }
        assert_eq!(stream[stream.len() - 4..], adler(&out).to_be_bytes());
        out
    }

    #[test]
    fn what_is_compressed_comes_back() {
        let mut state = 1u32;
        let mut random = move || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            state >> 24
        };
        for stride in [1, 2, 3, 5, 64, 300, 513, 5000] {
            for kinds in [1, 2, 48, 256] {
                let mut bytes: Vec<u8> = Vec::new();
                while bytes.len() < 20_000 {
                    let (value, times) = (random() % kinds, 1 + random() % 40 * (random() % 20));
                    bytes.extend(std::iter::repeat_n(value as u8, times as usize));
                }
                let again = bytes.clone();
                bytes.extend(again);
                assert!(
                    inflate(&zlib(&bytes, stride)) == bytes,
                    "stride {stride}, {kinds} values"
                );
            }
        }
        assert!(inflate(&zlib(&[], 1)).is_empty());
    }

    #[test]
    fn pictures_may_be_empty_or_uneven() {
        for (counts, columns) in [
            (vec![], 4),
            (vec![1, 2, 3], 0),
            (vec![0; 10], 4),
            (vec![u32::MAX; 6], 3),
        ] {
            assert!(data_uri(&counts, columns, 7).starts_with("data:image/png;base64,iVBORw0KGgo"));
        }
        assert_eq!(
            [shade(0, 9), shade(1, u32::MAX), shade(5, 5), shade(9, 0)],
            [0, 1, 47, 47]
        );
    }
}
