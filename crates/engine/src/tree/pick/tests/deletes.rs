//! Picks for the sake of deletes: tombstones that are worth a compaction, and tables that range
//! deletes cover.

use super::*;

#[track_caller]
fn deletes(expected: &str, drawing: &str) {
    let drawing = draw(drawing);
    let choice = pick_deletes(&drawing.input(), &drawing.deletes);
    if let Some(choice) = &choice {
        lands(&drawing, choice);
    }
    assert_eq!(described(choice), expected);
}

#[test]
fn tombstones_worth_it_are_picked_when_nothing_is_due() {
    // Half of the table's entries are deletes, and the level below is as large: a quarter of all.
    deletes(
        "merge L1->L2: L1 1 L2 2 [a..c]",
        "L1: 1[a..c]%50
         L2: 2[a..c]",
    );
    // All entries in reach down to the bottom count, not only those of the next level. The table
    // then moves at no cost.
    deletes("move L1->L2: L1 1 [a..c]", "L1: 1[a..c]%50\nL4: 2[a..c]");
    deletes(
        "nothing",
        "L1: 1[a..c]%50
         L2: 2[a..b]
         L3: 3[a..b] 4[c..d]
         L4: 5[a..c]",
    );
    // A level that is due comes first.
    deletes(
        "nothing",
        "level1 5
         L1: 1[a..c]%50
         L2: 2[a..c]",
    );
    // The table that is worth the most is taken, with neighbours that cost nothing more.
    deletes(
        "merge L1->L2: L1 2 L2 5 [d..f]",
        "L1: 1[a..c]%30 2[d..f]%90
         L2: 4[a..c] 5[d..f]",
    );
}

#[test]
fn dropping_bottommost_tombstones_counts_as_a_gain() {
    deletes("rewrite L3->L3: L3 1 [a..c]", "L3: 1[a..c]%20 2[d..f]%10");
    deletes("nothing", "L3: 1[a..c]%10 2[d..f]");
    // Neighbours are rewritten together, because their remaining entries fit into fewer tables.
    // Other tables must not lie between them.
    deletes(
        "rewrite L6->L6: L6 2+3 [d..i]",
        "L6: 1[a..c] 2[d..f]%40 3[g..i]%90 4[j..l]%5 5[m..o]%50",
    );
    deletes("rewrite L2->L2: L2 1 [a..c)", "L2: 1[a..c)");
    deletes(
        "rewrite L6->L6: L6 2 [d..f]",
        "max 10
         L6: 1[a..c]%40 2[d..f]%90",
    );
}

#[test]
fn level_0_is_judged_as_a_whole() {
    // There are two runs, fewer than the trigger, and each alone is worth too little.
    deletes(
        "merge L0->L1: L0 3 L0 2 L1 1 [a..c]",
        "trigger 4
         L0 (10,20]: 3[a..c]%20
         L0 (0,10]: 2[a..c]%20
         L1: 1[a..c]",
    );
    deletes(
        "nothing",
        "trigger 4
         L0 (10,20]: 3[a..c]%10
         L0 (0,10]: 2[a..c]%10
         L1: 1[a..c]",
    );
    // An older source that is not installed keeps level 0 from moving.
    deletes(
        "nothing",
        "trigger 4
         L0 (10,20]: 3[a..c]!
         unsettled (0,10]
         L1: 1[a..c]",
    );
}

#[test]
fn tombstones_that_readers_need_or_that_were_unproductive_are_left_alone() {
    let drawing = "L0 (10,20]: 3[a..c]!
         L1: 1[x..z]!";
    deletes(
        "rewrite L1->L1: L1 1 [x..z]",
        &format!("trigger 4\n{drawing}\nunproductive 3"),
    );
    deletes(
        "nothing",
        &format!("trigger 4\n{drawing}\nunproductive 1\nread 19"),
    );
    deletes("nothing", &format!("trigger 4\n{drawing}\nread 0"));
    deletes(
        "nothing",
        &format!("trigger 4\n{drawing}\nunproductive 1 3"),
    );
}

#[test]
fn tables_that_range_deletes_cover_whole_are_dropped() {
    deletes(
        "drop L2->L2: L2 2+3 [b..f]",
        "L1: 1[a..g)
         L2: 2[b..c] 3[d..f] 4[fx..h]",
    );
    // A run of level 0 also covers tables of older runs. The most bytes come first.
    deletes(
        "drop L0->L0: L0 4 [b..d] (0, 10]",
        "trigger 4
         L0 (10,20]: 5[a..x)
         L0 (0,10]: 4[b..d]*20
         L1: 1[e..f]",
    );
    // A table is not dropped because of a range delete that is older or beneath it, or if a reader
    // may need it, or if a job has it.
    deletes(
        "nothing",
        "trigger 4
         L0 (10,20]: 5[b..d]
         L0 (0,10]: 4[a..x)*1
         reserved 4",
    );
    deletes("nothing", "read 0\nL1: 1[a..g)\nL2: 2[b..c]");
    // A table does not leave level 0 before an older source is installed.
    deletes(
        "nothing",
        "trigger 4
         L0 (20,30]: 5[a..x)
         L0 (10,20]: 4[b..d]
         unsettled (0,10]",
    );
    deletes(
        "nothing",
        "reserved 2
         L1: 1[a..g)
         L2: 2[b..c]",
    );
    // A table that a range delete covers in part is merged, if the part is large.
    deletes(
        "merge L1->L2: L1 1 L2 2 [a..k]",
        "L1: 1[a..f)*1
         L2: 2[b..k]",
    );
    deletes(
        "nothing",
        "L1: 1[a..c)*1
         L2: 2[b..z]*50",
    );
}

#[test]
fn ranges_that_meet_are_joined() {
    let half = |a: &str, b: &str| KeyRange::half_open(a.as_bytes(), b.as_bytes());
    assert_eq!(
        joined_ranges([
            half("m", "p"),
            half("a", "c"),
            half("c", "e"),
            half("b", "d")
        ]),
        [half("a", "e"), half("m", "p")]
    );
    let closed = KeyRange::closed(b"a", b"c");
    assert_eq!(joined_ranges([closed.clone(), half("d", "e")]).len(), 2);
}

/// Random versions: repeated picks for deletes come to an end soon. Merges drop nothing here, which
/// is the worst case.
#[test]
fn picks_for_deletes_come_to_an_end() {
    let mut state = 7u64;
    let mut below = |n: u64| {
        state = state
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % n
    };
    let mut picked = 0;
    for case in 0..200 {
        let mut text = String::from("trigger 50\nlevel1 100000\n");
        for run in (0..below(4)).rev() {
            let (a, b) = (below(13) as u8, below(13) as u8);
            let (id, lo) = (900 + run, run * 10);
            let (a, b) = ((b'a' + a) as char, (b'n' + b) as char);
            let close = if below(4) == 0 { ")" } else { "]" };
            writeln!(
                text,
                "L0 ({lo},{}]: {id}[{a}..{b}{close}%{}",
                lo + 10,
                below(101)
            )
            .unwrap();
        }
        let mut id = 1;
        for level in 1..7 {
            write!(text, "L{level}:").unwrap();
            for pair in 0..below(5) as u8 {
                let (a, b) = ((b'a' + pair * 5) as char, (b'd' + pair * 5) as char);
                let close = if below(5) == 0 { ")" } else { "]" };
                write!(text, " {id}[{a}..{b}{close}%{}", below(101)).unwrap();
                id += 1;
            }
            text.push('\n');
        }
        let mut drawing = draw(&text);
        let tables = drawing.version.tables().count();
        let mut steps = 0;
        while let Some(choice) = pick_deletes(&drawing.input(), &drawing.deletes) {
            steps += 1;
            assert!(
                steps <= 8 * tables,
                "case {case}: no end, at last {}",
                choice.reason
            );
            drawing.version = lands(&drawing, &choice);
            if choice.kind == ChoiceKind::Rewrite {
                // The compaction freed nothing, which the engine remembers.
                let new = drawing.version.tables().map(|(_, t)| t.id).max().unwrap();
                drawing.deletes.unproductive.insert(new);
            }
        }
        picked += steps;
    }
    assert!(picked > 200, "{picked}");
}
