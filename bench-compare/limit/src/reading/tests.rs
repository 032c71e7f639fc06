use super::*;

/// `memory.stat` of version 1 as Linux 6.18 writes it, shortened.
const V1_STAT: &str = "cache 1036288\nrss 1802240\nrss_huge 0\nshmem 4096\nmapped_file 8192\n\
dirty 45056\nwriteback 0\nworkingset_refault_anon 1\nworkingset_refault_file 287\nswap 0\n\
pgpgin 31639\npgpgout 30944\npgfault 69895\npgmajfault 8\n\
inactive_file 61440\ntotal_cache 9999999\ntotal_rss 9999999\n";

/// `memory.stat` of version 2, shortened.
const V2_STAT: &str = "anon 5242880\nfile 94371840\nkernel 2097152\nkernel_stack 98304\n\
pagetables 1048576\npercpu 0\nsock 0\nshmem 12288\nfile_mapped 16384\nfile_dirty 20480\n\
slab 900000\nworkingset_refault_anon 0\nworkingset_refault_file 33\npgsteal 5555\n\
pgfault 1000\npgmajfault 44\n";

fn group(files: &[(&str, &str)]) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    for (name, text) in files {
        fs::write(folder.path().join(name), text).unwrap();
    }
    folder
}

#[test]
fn files_of_version_1_are_read() {
    let folder = group(&[
        ("memory.stat", V1_STAT),
        ("memory.usage_in_bytes", "3000000\n"),
        ("memory.max_usage_in_bytes", "4000000\n"),
        ("memory.kmem.usage_in_bytes", "161472\n"),
        ("memory.memsw.limit_in_bytes", "8388608\n"),
        ("memory.failcnt", "17\n"),
        (
            "memory.oom_control",
            "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        ),
    ]);
    let expected = Reading {
        cgroup_version: 1,
        limit_bytes: 8 << 20,
        is_swap_limited: true,
        usage_bytes: Some(3_000_000),
        peak_bytes: Some(4_000_000),
        anonymous_bytes: Some(1_802_240),
        cache_bytes: Some(1_036_288),
        mapped_bytes: Some(8192),
        shared_bytes: Some(4096),
        dirty_bytes: Some(45_056),
        kernel_bytes: Some(161_472),
        major_faults: Some(8),
        refaulted_pages: Some(287),
        limit_hits: Some(17),
        reclaimed_pages: None,
        killed_processes: Some(2),
    };
    assert_eq!(Reading::of(folder.path(), Version::One, 8 << 20), expected);
}

#[test]
fn files_of_version_2_are_read() {
    let folder = group(&[
        ("memory.stat", V2_STAT),
        ("memory.current", "103809024\n"),
        ("memory.peak", "104857600\n"),
        (
            "memory.events",
            "low 0\nhigh 0\nmax 512\noom 1\noom_kill 0\noom_group_kill 0\n",
        ),
    ]);
    let expected = Reading {
        cgroup_version: 2,
        limit_bytes: 100 << 20,
        is_swap_limited: false,
        usage_bytes: Some(103_809_024),
        peak_bytes: Some(104_857_600),
        anonymous_bytes: Some(5 << 20),
        cache_bytes: Some(90 << 20),
        mapped_bytes: Some(16_384),
        shared_bytes: Some(12_288),
        dirty_bytes: Some(20_480),
        kernel_bytes: Some(2 << 20),
        major_faults: Some(44),
        refaulted_pages: Some(33),
        limit_hits: Some(512),
        reclaimed_pages: Some(5555),
        killed_processes: Some(0),
    };
    assert_eq!(
        Reading::of(folder.path(), Version::Two, 100 << 20),
        expected
    );
}

#[test]
fn hits_that_the_kernel_does_not_count_are_not_known() {
    for (hits, peak, expected) in [
        ("0\n", "3600\n", Some(0)),
        ("0\n", "3700\n", None),
        ("3\n", "4096\n", Some(3)),
    ] {
        let folder = group(&[
            ("memory.failcnt", hits),
            ("memory.max_usage_in_bytes", peak),
        ]);
        let reading = Reading::of(folder.path(), Version::One, 4096);
        assert_eq!(reading.limit_hits, expected, "{hits} {peak}");
    }
}

#[test]
fn an_old_kernel_of_version_2_gives_the_parts_of_its_memory() {
    let older = V2_STAT.replace("kernel 2097152\n", "");
    let older = older.replace("workingset_refault_file", "workingset_refault");
    let folder = group(&[("memory.stat", &older)]);
    let reading = Reading::of(folder.path(), Version::Two, 1 << 30);
    assert_eq!(reading.kernel_bytes, Some(98_304 + 1_048_576 + 900_000));
    assert_eq!(reading.refaulted_pages, Some(33));
    assert_eq!(reading.peak_bytes, None);
    assert_eq!(reading.limit_hits, None);
}

#[test]
fn what_cannot_be_read_is_null_in_json() {
    let folder = group(&[("memory.stat", "torn\ncache x\n")]);
    let reading = Reading::of(folder.path(), Version::One, 1 << 30);
    assert_eq!(reading.nearness(), None);
    let text = serde_json::to_string(&reading).unwrap();
    assert!(text.contains("\"cache_bytes\":null"), "{text}");
    assert_eq!(serde_json::from_str::<Reading>(&text).unwrap(), reading);
}

#[test]
fn a_run_is_near_its_limit_from_nine_tenths_on() {
    let folder = group(&[("memory.stat", V2_STAT), ("memory.events", "max 7\n")]);
    let near = |mib: u64| {
        let reading = Reading::of(folder.path(), Version::Two, mib << 20);
        reading.nearness().unwrap()
    };
    // The cache has 90 MiB, and the heap 5.
    assert!(near(105).is_near);
    assert!(!near(106).is_near);
    assert_eq!(
        near(100).to_string(),
        "at most 95.0 MiB were used, 95.0% of the limit of 100.0 MiB; at the end the page cache \
         has 90.0 MiB and the heap 5.0 MiB; the kernel has 2.0 MiB for the group; the limit was \
         hit 7 times"
    );
}

#[test]
fn memory_that_was_given_back_counts() {
    let (peak, current) = ("memory.peak", "memory.current");
    for (highest, is_near) in [(180u64 << 20, true), (179 << 20, false)] {
        let text = highest.to_string();
        let folder = group(&[
            ("memory.stat", V2_STAT),
            (current, "103809024\n"),
            (peak, &text),
        ]);
        let reading = Reading::of(folder.path(), Version::Two, 200 << 20);
        let nearness = reading.nearness().unwrap();
        assert_eq!(nearness.is_near, is_near, "{nearness}");
        assert_eq!(nearness.highest_bytes, highest);
    }
}
