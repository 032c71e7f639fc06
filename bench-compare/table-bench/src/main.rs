//! Compares tables of siltstone with a LevelDB store, alternating in one process, with a warm page
//! cache.
//!
//! `cargo run --release -- <keys> <value bytes> <fixed|variable> <none|lz4>`; prints medians of
//! seven rounds. Only the table path is compared: tables that do not overlap, no memtable, no view.
//! LevelDB is compacted into its last levels, uncompressed, with 10 filter bits per key, and its
//! tables are mapped (max_open_files 1000).

use std::ffi::{CString, c_char, c_int, c_uchar, c_void};
use std::hint::black_box;
use std::sync::Arc;
use std::time::Instant;

use siltstone_storage::{FileStorage, Storage};
use siltstone_table::key::{Kind, MAX_SEQ, hash, seek_trailer, trailer};
use siltstone_table::{Codec, NoCache, ReaderOptions, TableReader, TableWriter, WriterOptions};

type P = *mut c_void;
unsafe extern "C" {
    fn leveldb_open(o: P, name: *const c_char, e: *mut *mut c_char) -> P;
    fn leveldb_close(db: P);
    fn leveldb_options_create() -> P;
    fn leveldb_options_set_create_if_missing(o: P, v: c_uchar);
    fn leveldb_options_set_filter_policy(o: P, f: P);
    fn leveldb_options_set_compression(o: P, c: c_int);
    fn leveldb_options_set_write_buffer_size(o: P, n: usize);
    fn leveldb_options_set_block_size(o: P, n: usize);
    fn leveldb_options_set_max_open_files(o: P, n: c_int);
    fn leveldb_filterpolicy_create_bloom(bits: c_int) -> P;
    fn leveldb_readoptions_create() -> P;
    fn leveldb_writeoptions_create() -> P;
    fn leveldb_put(
        db: P,
        w: P,
        k: *const u8,
        kl: usize,
        v: *const u8,
        vl: usize,
        e: *mut *mut c_char,
    );
    fn leveldb_get(
        db: P,
        r: P,
        k: *const u8,
        kl: usize,
        vl: *mut usize,
        e: *mut *mut c_char,
    ) -> *mut u8;
    fn leveldb_free(p: P);
    fn leveldb_compact_range(db: P, s: *const u8, sl: usize, e: *const u8, el: usize);
    fn leveldb_create_iterator(db: P, r: P) -> P;
    fn leveldb_iter_destroy(i: P);
    fn leveldb_iter_seek(i: P, k: *const u8, kl: usize);
    fn leveldb_iter_seek_to_first(i: P);
    fn leveldb_iter_valid(i: P) -> c_uchar;
    fn leveldb_iter_next(i: P);
    fn leveldb_iter_key(i: P, l: *mut usize) -> *const u8;
    fn leveldb_iter_value(i: P, l: *mut usize) -> *const u8;
}

fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xbf58476d1ce4e5b9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94d049bb133111eb);
    x ^ (x >> 31)
}

fn key(i: u64, variable: bool) -> Vec<u8> {
    let mut k: Vec<u8> = [mix(i + 1).to_be_bytes(), mix(i + (1 << 40)).to_be_bytes()].concat();
    if variable {
        let len = 8 + mix(i + (1 << 41)) as usize % 33;
        k.resize(len, b'x');
    }
    k
}

fn median(mut v: Vec<f64>) -> f64 {
    v.sort_by(f64::total_cmp);
    v[v.len() / 2]
}

fn main() {
    let args: Vec<String> = std::env::args().collect();
    let n: u64 = args[1].parse().unwrap();
    let value_len: usize = args[2].parse().unwrap();
    let variable = args[3] == "variable";
    let codec = if args[4] == "lz4" {
        Codec::Lz4
    } else {
        Codec::None
    };
    let dir =
        std::path::PathBuf::from(std::env::var("BENCH_DIR").unwrap_or("/tmp/table-bench".into()));
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(dir.join("ours")).unwrap();
    // Half noise, half text: about 2:1 for lz4.
    let noise: Vec<u8> = (0..4096u64)
        .flat_map(|i| mix(i + 7).to_le_bytes())
        .collect();
    let value = |i: u64| {
        let at = mix(i) as usize % 30_000;
        let mut v = vec![b'.'; value_len];
        let half = value_len / 2;
        v[..half].copy_from_slice(&noise[at..at + half]);
        v
    };
    let mut keys: Vec<(Vec<u8>, u64)> = (0..n).map(|i| (key(i, variable), i)).collect();
    keys.sort();
    keys.dedup_by(|a, b| a.0 == b.0);
    let n = keys.len() as u64;

    // Ours: tables of 64 MiB raw.
    let storage = FileStorage::open_or_create(dir.join("ours")).unwrap();
    let lease = storage.lease("LOCK").unwrap();
    let options = WriterOptions {
        codec,
        ..WriterOptions::default()
    };
    let start = Instant::now();
    let mut tables: Vec<(Vec<u8>, Arc<TableReader>)> = Vec::new();
    let (mut i, mut file_bytes) = (0, 0);
    while i < keys.len() {
        let name = format!("{:06}.tbl", tables.len());
        let mut w =
            TableWriter::new(storage.create(lease.epoch(), &name).unwrap(), options).unwrap();
        while i < keys.len() && w.raw_bytes() < 64 << 20 {
            let (k, id) = &keys[i];
            w.add(k, trailer(mix(*id) >> 40, Kind::Put), &value(*id))
                .unwrap();
            i += 1;
        }
        let s = w.finish().unwrap();
        file_bytes += s.file_bytes;
        let t = TableReader::open(storage.open(&name).unwrap(), ReaderOptions::default()).unwrap();
        tables.push((s.properties.largest_key.unwrap(), t));
    }
    let built = start.elapsed();
    eprintln!(
        "{n} keys, {} tables, {:.2} file bytes an entry, built in {built:.1?}",
        tables.len(),
        file_bytes as f64 / n as f64
    );

    // SAFETY: LevelDB's C interface is used as its header documents; every pointer lives until the
    // program ends.
    let (db, ro) = unsafe {
        let o = leveldb_options_create();
        leveldb_options_set_create_if_missing(o, 1);
        leveldb_options_set_filter_policy(o, leveldb_filterpolicy_create_bloom(10));
        leveldb_options_set_compression(o, (codec == Codec::Lz4) as c_int);
        leveldb_options_set_write_buffer_size(o, 64 << 20);
        leveldb_options_set_block_size(o, 4096);
        leveldb_options_set_max_open_files(o, 1000);
        let name = CString::new(dir.join("level").to_str().unwrap()).unwrap();
        let mut e = std::ptr::null_mut();
        let mut db = leveldb_open(o, name.as_ptr(), &mut e);
        assert!(e.is_null());
        let wo = leveldb_writeoptions_create();
        for (k, id) in &keys {
            let v = value(*id);
            leveldb_put(db, wo, k.as_ptr(), k.len(), v.as_ptr(), v.len(), &mut e);
        }
        leveldb_compact_range(db, std::ptr::null(), 0, std::ptr::null(), 0);
        leveldb_close(db);
        db = leveldb_open(o, name.as_ptr(), &mut e);
        assert!(e.is_null());
        (db, leveldb_readoptions_create())
    };
    let pick = |k: &[u8]| {
        tables
            .partition_point(|t| t.0.as_slice() < k)
            .min(tables.len() - 1)
    };
    let cache = NoCache;
    let mut buf = Vec::with_capacity(value_len);

    let ours_get = |ids: &[Vec<u8>], buf: &mut Vec<u8>| {
        let mut found = 0u64;
        for k in ids {
            let t = &tables[pick(k)].1;
            found += t.get(&cache, k, hash(k), MAX_SEQ, buf).unwrap().is_some() as u64;
            black_box(&buf);
        }
        found
    };
    let level_get = |ids: &[Vec<u8>]| {
        let mut found = 0u64;
        for k in ids {
            // SAFETY: as above.
            unsafe {
                let (mut l, mut e) = (0, std::ptr::null_mut());
                let v = leveldb_get(db, ro, k.as_ptr(), k.len(), &mut l, &mut e);
                if !v.is_null() {
                    found += 1;
                    black_box(*v);
                    leveldb_free(v.cast());
                }
            }
        }
        found
    };
    let ours_seek = |ids: &[Vec<u8>]| {
        let mut iters: Vec<_> = tables.iter().map(|t| t.1.iter(Arc::new(NoCache))).collect();
        let mut sum = 0u64;
        for k in ids {
            let it = &mut iters[pick(k)];
            it.seek(k, seek_trailer(MAX_SEQ)).unwrap();
            for _ in 0..10 {
                if !it.valid() {
                    break;
                }
                sum += it.value().unwrap()[0] as u64 + it.key().len() as u64;
                it.next().unwrap();
            }
        }
        sum
    };
    let level_seek = |ids: &[Vec<u8>]| {
        let mut sum = 0u64;
        // SAFETY: as above.
        unsafe {
            let it = leveldb_create_iterator(db, ro);
            for k in ids {
                leveldb_iter_seek(it, k.as_ptr(), k.len());
                for _ in 0..10 {
                    if leveldb_iter_valid(it) == 0 {
                        break;
                    }
                    let mut l = 0;
                    leveldb_iter_key(it, &mut l);
                    sum += l as u64 + *leveldb_iter_value(it, &mut l) as u64;
                    leveldb_iter_next(it);
                }
            }
            leveldb_iter_destroy(it);
        }
        sum
    };
    let ours_scan = || {
        let (mut sum, mut count) = (0u64, 0u64);
        for (_, t) in &tables {
            let mut it = t.iter(Arc::new(NoCache));
            it.seek_to_first().unwrap();
            while it.valid() {
                sum += it.value().unwrap()[0] as u64 + it.key()[0] as u64;
                count += 1;
                it.next().unwrap();
            }
        }
        black_box(sum);
        count
    };
    let level_scan = || {
        let (mut sum, mut count) = (0u64, 0u64);
        // SAFETY: as above.
        unsafe {
            let it = leveldb_create_iterator(db, ro);
            leveldb_iter_seek_to_first(it);
            while leveldb_iter_valid(it) != 0 {
                let mut l = 0;
                sum +=
                    *leveldb_iter_key(it, &mut l) as u64 + *leveldb_iter_value(it, &mut l) as u64;
                count += 1;
                leveldb_iter_next(it);
            }
            leveldb_iter_destroy(it);
        }
        black_box(sum);
        count
    };
    // Warm both: a scan of each, and reads.
    assert_eq!((ours_scan(), level_scan()), (n, n));
    let ops = 150_000u64;
    let hits = |r: u64| {
        (0..ops)
            .map(|i| keys[(mix(i + r * ops) % n) as usize].0.clone())
            .collect::<Vec<_>>()
    };
    let misses = |r: u64| {
        (0..ops)
            .map(|i| key((1 << 50) + r * ops + i, variable))
            .collect::<Vec<_>>()
    };
    let mut t: Vec<[Vec<f64>; 2]> = (0..4).map(|_| [vec![], vec![]]).collect();
    ours_get(&hits(90), &mut buf);
    level_get(&hits(90));
    for r in 0..7 {
        let (h, m) = (hits(r), misses(r));
        let mut time = |what: usize, who: usize, ops: u64, f: &mut dyn FnMut() -> u64| {
            let s = Instant::now();
            let x = f();
            t[what][who].push(s.elapsed().as_nanos() as f64 / ops as f64);
            x
        };
        assert_eq!(time(0, 0, ops, &mut || ours_get(&h, &mut buf)), ops);
        assert_eq!(time(0, 1, ops, &mut || level_get(&h)), ops);
        time(1, 0, ops, &mut || ours_get(&m, &mut buf));
        time(1, 1, ops, &mut || level_get(&m));
        let few = &h[..ops as usize / 3];
        let a = time(2, 0, few.len() as u64, &mut || ours_seek(few));
        let b = time(2, 1, few.len() as u64, &mut || level_seek(few));
        // At a table's end ours stops, LevelDB goes on: sums agree but for those.
        assert!(a.abs_diff(b) < b / 100);
        if r < 3 {
            time(3, 0, n, &mut || ours_scan());
            time(3, 1, n, &mut || level_scan());
        }
    }
    for (i, what) in ["get hit", "get miss", "seek+10", "scan, an entry"]
        .iter()
        .enumerate()
    {
        let (a, b) = (median(t[i][0].clone()), median(t[i][1].clone()));
        println!(
            "| {value_len} {} {} | {what} | {a:.0} | {b:.0} | {:.2}x |",
            args[3],
            args[4],
            b / a
        );
    }
    // SAFETY: as above; nothing uses it any more.
    unsafe { leveldb_close(db) };
    let _ = std::fs::remove_dir_all(&dir);
}
