//! A picture of counts as a PNG file in a data URI.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use png::{BitDepth, ColorType, Encoder, EncodingError, Filter};

/// Colours from few to many: dark violet to pale yellow, in even steps of lightness, so that
/// readers can distinguish them whatever colours they see (after "inferno" of N. Smith and S. van
/// der Walt).
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
fn colour(share: f64) -> [u8; 3] {
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

/// The number of colours in the palette. They are so few that neighbours are often the same, which
/// compresses well.
const SHADES: usize = 48;

/// The picture as a data URI. The count `most` has the brightest colour; every other count than
/// zero differs from zero. There is no picture of less than one row of counts, nor of more columns
/// or rows than a PNG file can have.
pub fn data_uri(counts: &[u32], columns: usize, most: u32) -> Option<String> {
    let file = encode(counts, columns, most).ok()?;
    Some(format!("data:image/png;base64,{}", STANDARD.encode(file)))
}

fn encode(counts: &[u32], columns: usize, most: u32) -> Result<Vec<u8>, EncodingError> {
    let rows = counts.len().checked_div(columns).unwrap_or(0);
    let palette: Vec<u8> = (0..SHADES)
        .flat_map(|n| colour(n as f64 / (SHADES - 1) as f64))
        .collect();
    let counts = &counts[..rows * columns];
    let pixels: Vec<u8> = counts.iter().map(|count| shade(*count, most)).collect();
    let size = |n: usize| u32::try_from(n).map_err(|_| EncodingError::LimitsExceeded);
    let mut file = Vec::new();
    let mut encoder = Encoder::new(&mut file, size(columns)?, size(rows)?);
    encoder.set_color(ColorType::Indexed);
    encoder.set_depth(BitDepth::Eight);
    encoder.set_palette(palette);
    // Filters replace pixels by differences between neighbours. Differences of palette indices
    // compress worse than the indices.
    encoder.set_filter(Filter::NoFilter);
    let mut writer = encoder.write_header()?;
    writer.write_image_data(&pixels)?;
    writer.finish()?;
    Ok(file)
}

fn shade(count: u32, most: u32) -> u8 {
    if count == 0 {
        return 0;
    }
    // The square root makes thin regions visible.
    let share = (f64::from(count) / f64::from(most.max(1))).min(1.0).sqrt();
    ((share * (SHADES - 1) as f64).round() as u8).max(1)
}

#[cfg(test)]
mod tests {
    use std::io::Cursor;

    use super::*;

    /// Size, palette and palette indices of the picture in a data URI.
    fn decode(uri: &str) -> ((u32, u32), Vec<u8>, Vec<u8>) {
        let encoded = uri.strip_prefix("data:image/png;base64,").unwrap();
        let file = STANDARD.decode(encoded).unwrap();
        let mut reader = png::Decoder::new(Cursor::new(file)).read_info().unwrap();
        let mut pixels = vec![0; reader.output_buffer_size().unwrap()];
        reader.next_frame(&mut pixels).unwrap();
        let info = reader.info();
        let palette = info.palette.as_deref().unwrap().to_vec();
        (info.size(), palette, pixels)
    }

    /// A picture of the encoder that this program had of its own before it used the crate `png`:
    /// the counts 0 to 11 and six zeros, six in a row, 9 as the brightest.
    const OWN_ENCODER: &str = "data:image/png;base64,\
        iVBORw0KGgoAAAANSUhEUgAAAAYAAAADCAMAAACH347JAAAAkFBMVEUICBQNCh8RDCoWDjYbD0EiD0orDlM0DFs9\
        C2NGC2lODmpXEGtfE21nFm5wGW14HGyAH2uIImqQJWiYKGagLGOoL2GwM124N1m/O1XHP1HOREvUSkTaUD3gVjbl\
        XS/pZSntbSLxdRz1fRX3hRL5jxD6mA37oQv7qhL6tSD4vy73yTz200z43mL56Xj79I78/6QHERRpAAAAGElEQVR4\
        AWNgEBCTlldmUNPU0dfXZ4AAABNMAYzSj726AAAAAElFTkSuQmCC";

    #[test]
    fn pictures_equal_those_of_the_encoder_before() {
        let mut counts = Vec::from_iter(0..12);
        counts.extend([0; 6]);
        let picture = decode(&data_uri(&counts, 6, 9).unwrap());
        assert_eq!(picture, decode(OWN_ENCODER));
    }

    #[test]
    fn each_pixel_has_the_shade_of_its_count() {
        let palette: Vec<u8> = (0..SHADES).flat_map(|n| colour(n as f64 / 47.0)).collect();
        let mut state = 1u32;
        for (columns, rows) in [(1, 1), (1, 300), (300, 1), (7, 5), (320, 180)] {
            let counts: Vec<u32> = (0..columns * rows)
                .map(|_| {
                    state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
                    // Half of the cells are empty, and a few are brighter than the brightest.
                    (state >> 24).saturating_sub(127)
                })
                .collect();
            let expected: Vec<u8> = counts.iter().map(|count| shade(*count, 100)).collect();
            let (size, found, pixels) = decode(&data_uri(&counts, columns, 100).unwrap());
            assert_eq!(size, (columns as u32, rows as u32));
            assert!(found == palette, "palette of {columns} x {rows}");
            assert!(pixels == expected, "pixels of {columns} x {rows}");
        }
    }

    #[test]
    fn counts_may_lack_a_row_or_end_within_one() {
        assert_eq!(data_uri(&[], 4, 7), None);
        assert_eq!(data_uri(&[1, 2, 3], 0, 7), None);
        assert_eq!(data_uri(&[1, 2, 3], 4, 7), None);
        let (size, _, pixels) = decode(&data_uri(&[0; 10], 4, 7).unwrap());
        assert_eq!((size, pixels), ((4, 2), vec![0; 8]));
        let (size, _, pixels) = decode(&data_uri(&[u32::MAX; 6], 3, 7).unwrap());
        assert_eq!((size, pixels), ((3, 2), vec![47; 6]));
    }

    #[test]
    fn every_count_but_zero_is_visible() {
        assert_eq!(
            [shade(0, 9), shade(1, u32::MAX), shade(5, 5), shade(9, 0)],
            [0, 1, 47, 47]
        );
    }
}
