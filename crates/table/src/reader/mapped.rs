//! Reads blocks in place, from a map of the file.
//!
//! Invariants: what was read from a map is used only after the map was asked whether it failed
//! meanwhile. A block's columns and its values are verified separately, before the first use or
//! before every use ([`Verify`]).
//!
//! Threading: shared, as the reader.

use super::*;

impl TableReader {
    /// Returns what was read from the map, unless the map failed meanwhile.
    #[inline]
    pub(super) fn unless_map_failed<T>(
        &self,
        map: &Map,
        place: Place,
        read: std::result::Result<T, Damage>,
    ) -> Result<T> {
        if map.failed() {
            return Err(self.map_failed(place));
        }
        read.map_err(|d| d.in_file(self.name(), place.anchor))
    }

    #[cold]
    pub(super) fn map_failed(&self, place: Place) -> TableError {
        let detail = "a mapped page could not be read: the disk reported an error";
        let error = StorageError::new(StorageErrorKind::MapFailed, "read", self.name(), detail);
        TableError::Storage(error.at(place.start))
    }

    /// The verified header of a mapped block; `None` if the block is compressed.
    #[inline]
    pub(super) fn map_header(&self, map: &Map, i: usize, place: Place) -> Result<Option<Header>> {
        if self.verify == Verify::Always || !self.columns_verified.get(i) {
            self.verify_columns(map, i, place)?;
        }
        let header = Header::parse(map, place.anchor as usize).and_then(|h| {
            let values = (place.anchor - place.start) as usize;
            let columns = (place.end - place.anchor) as usize - CHECKSUM_BYTES;
            if h.flags & (FLAG_COLUMNS_COMPRESSED | FLAG_VALUES_COMPRESSED) != 0 {
                Ok(None)
            } else if h.end != columns {
                Err(Damage::new(
                    "length of a block's columns",
                    0,
                    h.end as u64,
                    columns as u64,
                ))
            } else if h.value_bytes != values {
                Err(Damage::new(
                    "length of a block's values",
                    16,
                    values as u64,
                    h.value_bytes as u64,
                ))
            } else {
                Ok(Some(h))
            }
        });
        self.unless_map_failed(map, place, header)
    }

    #[cold]
    pub(super) fn verify_columns(&self, map: &Map, i: usize, place: Place) -> Result<()> {
        let (at, end) = (place.anchor as usize, place.end as usize - CHECKSUM_BYTES);
        let computed = map.crc32c(at, end - at).unwrap_or(0);
        let stored = Bytes::u32(map, end);
        let equal = if computed == stored {
            Ok(())
        } else {
            Err(Damage::new(
                "checksum of a block's columns",
                (end - at) as u64,
                computed as u64,
                stored as u64,
            ))
        };
        self.unless_map_failed(map, place, equal)?;
        self.columns_verified.set(i);
        Ok(())
    }

    #[cold]
    pub(super) fn verify_values(
        &self,
        map: &Map,
        i: usize,
        place: Place,
        header: &Header,
    ) -> Result<()> {
        let at = place.start as usize;
        let computed = map.crc32c(at, place.anchor as usize - at).unwrap_or(0);
        let equal = if computed == header.values_crc {
            Ok(())
        } else {
            Err(Damage::new(
                "checksum of a block's values",
                24,
                computed as u64,
                header.values_crc as u64,
            ))
        };
        self.unless_map_failed(map, place, equal)?;
        self.values_verified.set(i);
        Ok(())
    }

    /// Appends a value of a mapped, uncompressed block to `out`.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub(super) fn copy_from_map(
        &self,
        map: &Map,
        i: usize,
        place: Place,
        header: &Header,
        start: usize,
        len: usize,
        out: &mut Vec<u8>,
    ) -> Result<()> {
        if self.verify == Verify::Always || !self.values_verified.get(i) {
            self.verify_values(map, i, place, header)?;
        }
        let copied = map.view().append_to(place.start as usize + start, len, out);
        let copied = if copied {
            Ok(())
        } else {
            Err(Damage::new("value", 0, len as u64, 0))
        };
        self.unless_map_failed(map, place, copied)
    }
}
