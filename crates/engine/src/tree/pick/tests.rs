//! Picks, with versions and choices written as text ([`drawing`]).

use std::fmt::Write as _;

use drawing::Drawing;
pub(in crate::tree) use drawing::draw;

use super::*;
use crate::formats::version::{AddTable, KeyspaceEdit, RunSlot};
use crate::types::options::{ByLevel, Compression, LevelTargets};

const MIB: u64 = 1 << 20;

fn described(choice: Option<Choice>) -> String {
    let Some(choice) = choice else {
        return "nothing".into();
    };
    let kind = match choice.kind {
        ChoiceKind::Merge => "merge",
        ChoiceKind::TrivialMove => "move",
        ChoiceKind::IntraL0 => "intra",
        ChoiceKind::Rewrite => "rewrite",
        ChoiceKind::Drop => "drop",
    };
    let mut text = format!("{kind} L{}->L{}:", choice.from, choice.to);
    for input in &choice.inputs {
        let ids: Vec<String> = input.tables.iter().map(|t| t.id.to_string()).collect();
        write!(text, " L{} {}", input.level, ids.join("+")).unwrap();
    }
    write!(text, " {}", choice.range).unwrap();
    if let Some(seqs) = choice.output_seqs {
        write!(text, " {seqs}").unwrap();
    }
    assert!(!choice.reason.is_empty());
    text
}

#[track_caller]
fn picks(expected: &str, drawing: &str) {
    let drawing = draw(drawing);
    let choice = pick(&drawing.input());
    if let Some(choice) = &choice {
        lands(&drawing, choice);
    }
    // The index of overlaps changes nothing.
    let version = Arc::new(drawing.version.clone());
    let mut overlaps = Overlaps::default();
    overlaps.follow(&version);
    let with_index = PickInput {
        version: &version,
        overlaps: Some(&overlaps),
        ..drawing.input()
    };
    assert_eq!(pick(&with_index), choice);
    assert_eq!(described(choice), expected);
}

/// Checks that the version accepts the edit for the outputs of a choice, so that no invariant is
/// violated.
#[track_caller]
fn lands(drawing: &Drawing, choice: &Choice) -> KeyspaceVersion {
    let mut edit = KeyspaceEdit {
        remove: choice.removals(),
        ..KeyspaceEdit::new(1)
    };
    let run = choice.output_seqs.map(|seqs| RunSlot {
        id: 5000 + drawing.version.covered().ranges().len() as u64,
        seqs,
    });
    if choice.kind == ChoiceKind::Drop {
        // Nothing replaces them.
    } else if choice.kind == ChoiceKind::TrivialMove {
        edit.add.extend(choice.tables().map(|t| AddTable {
            level: choice.to,
            run,
            table: t.clone(),
        }));
    } else {
        let first = choice.tables().next().unwrap();
        let max_id = drawing.version.tables().map(|(_, t)| t.id).max().unwrap();
        let table = TableMeta {
            id: max_id + 1,
            bounds: choice.range.clone(),
            file_bytes: choice.input_bytes,
            min_seq: first.max_seq,
            ..(**first).clone()
        };
        edit.add.push(AddTable {
            level: choice.to,
            run,
            table: Arc::new(table),
        });
    }
    drawing
        .version
        .apply(&edit)
        .expect("the version takes what was picked")
}

#[test]
fn nothing_is_picked_below_the_thresholds() {
    picks("nothing", "");
    picks("nothing", "L0 (0,10]: 1[a..z]");
    picks("nothing", "L1: 1[a..c] 2[d..f]");
    picks("nothing", "L6: 1[a..z]*9000");
}

#[test]
fn dynamic_targets_follow_the_largest_level() {
    let of = |drawing: &str| {
        let drawing = draw(&format!("dynamic\n{drawing}"));
        let t = targets(&drawing.version, &drawing.options, &drawing.jobs);
        let mib = t.bytes.map(|b| b / MIB);
        (t.base, t.first_needed, mib[4], mib[5], mib[6])
    };
    // Level 1 has a target of 100 MiB, and each further level one ten times larger.
    assert_eq!(of(""), (6, 6, 0, 0, 100));
    assert_eq!(of("L6: 1[a..z]*100"), (6, 6, 0, 0, 100));
    assert_eq!(of("L6: 1[a..z]*110"), (5, 5, 0, 100, 110));
    assert_eq!(of("L6: 1[a..z]*1000"), (5, 5, 0, 100, 1000));
    assert_eq!(of("L6: 1[a..z]*9000"), (4, 4, 100, 900, 9000));
    // A level that has tables, or will have some, is not passed.
    assert_eq!(of("L3: 2[a..b]\nL6: 1[a..z]*1000"), (3, 5, 0, 100, 1000));
    assert_eq!(of("span 4 [a..b]\nL6: 1[a..z]*1000"), (4, 5, 0, 100, 1000));
    assert_eq!(of("span 0 [a..b]\nL6: 1[a..z]*1000"), (5, 5, 0, 100, 1000));
    // The largest level counts, wherever it is.
    assert_eq!(of("L3: 1[a..z]*9000"), (3, 4, 100, 900, 9000));
    // There are enough levels, so the first one takes the remainder.
    assert_eq!(of("factor 2\nL6: 1[a..z]*640000").1, 1);
}

#[test]
fn with_dynamic_targets_level_0_moves_to_the_base() {
    picks(
        "merge L0->L6: L0 2 L0 1 L6 10 [a..m]",
        "dynamic
         L0 (10,20]: 2[b..d]
         L0 (0,10]: 1[a..m]
         L6: 10[a..c]*50 11[x..z]*50",
    );
    picks(
        "merge L0->L5: L0 2 L0 1 [a..m]",
        "dynamic
         L0 (10,20]: 2[b..d]
         L0 (0,10]: 1[a..m]
         L6: 10[a..c]*500 11[x..z]*500",
    );
    // A table that overlaps nothing moves all the way unchanged.
    picks(
        "move L0->L6: L0 1 [a..m]",
        "dynamic
         trigger 1
         L0 (0,10]: 1[a..m]*10",
    );
    // A job that works on the base keeps others out of its range.
    picks(
        "merge L0->L5: L0 2 L0 1 [p..t]",
        "dynamic
         L0 (10,20]: 2[p..r]
         L0 (0,10]: 1[q..t]
         span 5 [a..m]
         L6: 10[a..c]*500 11[x..z]*500",
    );
    picks(
        "nothing",
        "dynamic
         L0 (10,20]: 2[a..b]
         L0 (0,10]: 1[b..c]
         span 5 [a..m]
         L6: 10[a..c]*500 11[x..z]*500",
    );
}

#[test]
fn levels_that_are_not_needed_are_emptied() {
    picks(
        "merge L1->L2: L1 1 L2 2 [a..c]",
        "dynamic
         L1: 1[a..c]*3
         L2: 2[a..c]*30
         L6: 9[a..z]*90",
    );
    // A due level comes first, and moves to the highest level that still has data.
    picks(
        "merge L0->L1: L0 4 L0 3 L1 1 [a..m]",
        "dynamic
         trigger 1
         L0 (10,20]: 4[a..m]
         L0 (0,10]: 3[a..m]
         L1: 1[a..c]*3
         L6: 9[a..z]*90",
    );
}

#[test]
fn tables_do_not_move_to_a_level_of_another_codec() {
    let text = "trigger 1
         L0 (0,10]: 1[a..m]*10";
    let mut drawing = draw(text);
    assert_eq!(
        described(pick(&drawing.input())),
        "move L0->L1: L0 1 [a..m]"
    );
    drawing.options.compression = ByLevel::of(&[Compression::None, Compression::Lz4]).unwrap();
    assert_eq!(
        described(pick(&drawing.input())),
        "merge L0->L1: L0 1 [a..m]"
    );
}

#[test]
fn all_of_level_0_moves_down() {
    picks(
        "merge L0->L1: L0 3+4 L0 1 L1 10+11 [a..y]",
        "L0 (10,20]: 3[b..d] 4[e..k]
         L0 (0,10]: 1[a..m]
         L1: 10[a..c] 11[k..y] 12[z..zz]",
    );
}

#[test]
fn an_older_unflushed_memtable_keeps_level_0_from_moving() {
    // The memtable with the numbers (0,100] is still being flushed, so nothing may leave level 0.
    picks(
        "nothing",
        "L0 (200,300]: 2[a..m]
         L0 (100,200]: 1[a..m]!
         unsettled (0,100]
         unsettled (300,400]",
    );
    // The newest memtable does not keep level 0 from moving.
    picks(
        "merge L0->L1: L0 2 L0 1 [a..m]",
        "L0 (200,300]: 2[a..m]
         L0 (100,200]: 1[a..m]!
         unsettled (300,400]",
    );
}

#[test]
fn only_runs_older_than_an_uninstalled_source_move_down() {
    picks(
        "merge L0->L1: L0 2 L0 1 [a..m]",
        "L0 (300,400]: 4[a..m]
         L0 (200,300]: 3[a..m]
         unsettled (100,200]
         L0 (50,100]: 2[a..m]
         L0 (0,50]: 1[a..m]",
    );
    // Newer runs may merge with each other, but not across the slot of that source.
    picks(
        "intra L0->L0: L0 6 L0 5 L0 4 [a..m] (200, 500]",
        "L0 (400,500]: 6[a..m]
         L0 (300,400]: 5[a..m]
         L0 (200,300]: 4[a..m]
         unsettled (100,200]
         L0 (50,100]: 2[a..m]
         L0 (0,50]: 1[a..m]
         reserved 1 2
         intra 3 3",
    );
    picks(
        "nothing",
        "L0 (300,400]: 5[a..m]
         L0 (200,300]: 4[a..m]
         unsettled (100,200]
         L0 (50,100]: 2[a..m]
         L0 (0,50]: 1[a..m]
         span 1 [a..z]
         intra 3 3",
    );
}

#[test]
fn levels_are_compared_by_keys_only() {
    // The table of L1 has smaller numbers than that of L2, but is the newer one for its keys.
    picks(
        "merge L1->L2: L1 1 L2 2 [a..d]",
        "level1 5
         L1: 1[a..c]
         L2: 2[b..d] 3[x..z]",
    );
}

#[test]
fn a_reserved_run_keeps_runs_that_overlap_it_from_moving() {
    picks(
        "move L0->L1: L0 3 [x..z]",
        "trigger 1
         L0 (20,30]: 2[a..m] 3[x..z]
         L0 (0,20]: 1[b..c]
         reserved 1
         span 1 [b..c]",
    );
    // Indirectly as well: 3 overlaps 2, which overlaps 1.
    picks(
        "nothing",
        "trigger 1
         L0 (30,40]: 3[f..h]
         L0 (20,30]: 2[c..f]
         L0 (0,20]: 1[a..c]
         reserved 1",
    );
}

#[test]
fn no_run_moves_down_across_work_on_level_1() {
    // The right piece has more bytes.
    picks(
        "merge L0->L1: L0 4 L0 2 L1 12 [n..x]",
        "L0 (20,30]: 3[a..c] 4[n..q]*20
         L0 (0,20]: 1[a..d] 2[o..p]
         L1: 10[a..b] 11[f..h] 12[p..x]
         reserved 11",
    );
    picks(
        "nothing",
        "L0 (20,30]: 3[a..m]
         L0 (0,20]: 1[a..m]
         L1: 11[f..h]
         reserved 11",
    );
    // A table over the wall stays, and so does a newer one over that table, on both sides of the
    // wall.
    picks(
        "nothing",
        "L0 (20,30]: 3[a..c] 4[n..q]
         L0 (0,20]: 1[b..o]
         L1: 11[f..h]
         reserved 11",
    );
}

#[test]
fn a_job_that_would_be_too_large_takes_the_oldest_runs() {
    picks(
        "merge L0->L1: L0 2 L0 1 [a..m]",
        "max 15
         L0 (30,40]: 4[a..m]
         L0 (20,30]: 3[a..m]
         L0 (10,20]: 2[a..m]
         L0 (0,10]: 1[a..m]",
    );
}

#[test]
fn disjoint_runs_are_moved_unchanged() {
    picks(
        "move L0->L1: L0 2 L0 1 [a..d]",
        "L0 (10,20]: 2[c..d]
         L0 (0,10]: 1[a..b]
         L1: 9[x..z]",
    );
    // But not if they must be rewritten, if they are small, or if tombstones can be dropped.
    picks(
        "merge L0->L1: L0 2 L0 1 [a..d]",
        "L0 (10,20]: 2[c..d]^\n L0 (0,10]: 1[a..b]",
    );
    picks(
        "merge L0->L1: L0 2 L0 1 [a..d]",
        "L0 (10,20]: 2[c..d]*1\n L0 (0,10]: 1[a..b]*1",
    );
    picks(
        "merge L0->L1: L0 2 L0 1 [a..d]",
        "L0 (10,20]: 2[c..d]!\n L0 (0,10]: 1[a..b]",
    );
    // A range delete alone, with something below that it deletes, moves on.
    picks(
        "move L0->L1: L0 1 [c..d)",
        "trigger 1\n L0 (0,10]: 1[c..d)\n L2: 7[c..d]",
    );
    picks(
        "merge L0->L1: L0 1 [c..d)",
        "trigger 1\n L0 (0,10]: 1[c..d)",
    );
    // The end of the range delete is not part of it.
    picks(
        "move L0->L1: L0 1 [c..d)",
        "trigger 1\n L0 (0,10]: 1[c..d)\n L1: 8[d..e]\n L2: 7[c..d]",
    );
    picks(
        "merge L0->L1: L0 1 L1 8 [c..e]",
        "trigger 1\n L0 (0,10]: 1[c..d]\n L1: 8[d..e]\n L2: 7[c..d]",
    );
}

#[test]
fn the_table_with_the_fewest_overlaps_moves_down() {
    picks(
        "merge L1->L2: L1 3 L2 23 [m..o]",
        "level1 15
         L1: 1[a..c] 2[d..j] 3[m..n]
         L2: 20[a..b] 21[c..e] 22[f..h] 23[n..o]",
    );
    // Of equal counts, the fewest bytes decide.
    picks(
        "merge L1->L2: L1 2 L2 21 [d..e]",
        "level1 15
         L1: 1[a..b] 2[d..e]
         L2: 20[a..b]*9 21[d..e]*8",
    );
    // Moves that cost nothing come first, one table each.
    picks(
        "move L1->L2: L1 2 [d..e]",
        "level1 15
         L1: 1[a..b] 2[d..e] 3[f..g]
         L2: 20[a..b]*9",
    );
}

#[test]
fn neighbours_that_cost_nothing_move_too() {
    picks(
        "merge L1->L2: L1 1+2+3 L2 20 [a..j]",
        "level1 15
         L1: 1[a..b] 2[d..e] 3[f..g] 4[k..n]
         L2: 20[a..j] 21[k..l] 22[m..z]",
    );
    picks(
        "merge L1->L2: L1 1 L2 20 [a..j]",
        "level1 15
         max 25
         L1: 1[a..b] 2[d..e] 3[f..g] 4[k..n]
         L2: 20[a..j] 21[k..l] 22[m..z]",
    );
}

#[test]
fn reserved_tables_and_spans_are_left_alone() {
    let below = "level1 5
         L1: 1[a..b] 2[d..e] 3[g..h]
         L2: 20[a..c] 21[d..e]*20 22[g..i]*30\n";
    picks("merge L1->L2: L1 1 L2 20 [a..c]", below);
    picks(
        "merge L1->L2: L1 2 L2 21 [d..e]",
        &format!("{below} reserved 1"),
    );
    picks(
        "merge L1->L2: L1 2 L2 21 [d..e]",
        &format!("{below} reserved 20"),
    );
    picks(
        "merge L1->L2: L1 3 L2 22 [g..i]",
        &format!("{below} reserved 20\n span 1 [d..d]"),
    );
    picks(
        "nothing",
        &format!("{below} reserved 20 21\n span 2 [i..j]"),
    );
    // Reserved tables do not count, so the level is not due any more.
    picks("nothing", "level1 15\n L1: 1[a..b] 2[d..e]\n reserved 1");
}

#[test]
fn the_highest_score_wins() {
    picks(
        "merge L2->L3: L2 3 L3 4 [x..z]",
        "level1 5
         factor 2
         L0 (10,20]: 2[a..b]
         L0 (0,10]: 1[a..b]
         L2: 3[x..z]*30
         L3: 4[x..y]",
    );
    // If it cannot move, the next one does.
    picks(
        "merge L0->L1: L0 2 L0 1 [a..b]",
        "level1 5
         factor 2
         L0 (10,20]: 2[a..b]
         L0 (0,10]: 1[a..b]
         L2: 3[x..z]*30
         L3: 4[x..y]
         reserved 4",
    );
}

#[test]
fn newer_runs_merge_while_older_ones_move_down() {
    let runs = "L0 (60,70]: 7[a..m]
         L0 (50,60]: 6[a..m]
         L0 (40,50]: 5[a..m]
         L0 (30,40]: 4[a..m]
         L0 (20,30]: 3[a..m]
         L0 (10,20]: 2[a..m]
         L0 (0,10]: 1[a..m]
         reserved 1 2\n";
    picks("nothing", &format!("{runs} intra 6 3"));
    picks(
        "intra L0->L0: L0 7 L0 6 L0 5 L0 4 L0 3 [a..m] (20, 70]",
        &format!("{runs} intra 5 3"),
    );
    // A job runs, so the second count, six, decides, and five runs are not merged.
    picks("nothing", &format!("{runs} intra 5 3 6"));
    let free = runs
        .replace("reserved 1 2", "unsettled (0,10]")
        .replace("L0 (0,10]: 1[a..m]", "");
    picks(
        "intra L0->L0: L0 7 L0 6 L0 5 L0 4 L0 3 L0 2 [a..m] (10, 70]",
        &format!("{free} intra 5 3 9"),
    );
    // A large run is not read again for the sake of small ones.
    picks(
        "intra L0->L0: L0 7 L0 6 L0 5 [a..m] (40, 70]",
        &runs
            .replace("4[a..m]", "4[a..m]*500")
            .replace("reserved", "intra 5 3\n reserved"),
    );
    // A merge does not cross a gap in the slots, where a source is not installed.
    picks(
        "nothing",
        &runs
            .replace("L0 (50,60]: 6[a..m]", "")
            .replace("reserved", "intra 3 4\n reserved"),
    );
}

#[test]
fn a_table_with_many_grandparents_is_merged_not_moved() {
    let mut grandparents = String::from("trigger 1\n L0 (0,10]: 1[a..b]\n L2:");
    for i in 0..41 {
        write!(grandparents, " {}[a{i:02}..a{i:02}x]", 100 + i).unwrap();
    }
    picks("merge L0->L1: L0 1 [a..b]", &grandparents);
}

#[test]
fn a_manual_compaction_moves_everything_to_the_bottom() {
    let mut drawing = draw(
        "trigger 100
         L0 (10,20]: 4[a..b] 5[x..z]
         L0 (0,10]: 3[b..c]
         L1: 10[b..d] 11[y..z]
         L3: 30[a..d] 31[x..z]",
    );
    let manual = ManualRange {
        range: KeyRange::closed(b"a", b"a"),
        rewrite_bottom: true,
        first_new_table_id: 32,
    };
    let mut steps = Vec::new();
    loop {
        match pick_manual(&drawing.input(), &manual) {
            ManualStep::Job(choice) => {
                drawing.version = lands(&drawing, &choice);
                drawing.version.check().unwrap();
                steps.push(described(Some(choice)));
            }
            step => {
                assert_eq!(step, ManualStep::Done);
                break;
            }
        }
        assert!(steps.len() < 20, "{steps:?}");
    }
    // The older run moves too because 4 overlaps it, and the other side of the runs stays. The
    // outputs are new, so the bottom is not rewritten a second time.
    assert_eq!(
        steps,
        [
            "merge L0->L1: L0 4 L0 3 L1 10 [a..d]",
            "move L1->L2: L1 32 [a..d]",
            "merge L2->L3: L2 32 L3 30 [a..d]",
        ]
    );
    let bottom = ManualRange {
        range: KeyRange::all(),
        rewrite_bottom: true,
        first_new_table_id: 1000,
    };
    let drawing = draw("L3: 30[a..d] 31[x..z]\n L5: 50[b..c] 51[n..o]");
    let ManualStep::Job(choice) = pick_manual(&drawing.input(), &bottom) else {
        panic!("no job")
    };
    assert_eq!(
        described(Some(choice)),
        "merge L3->L4: L3 30+31 [a..z]".replace("merge", "move")
    );
    let drawing = draw("L5: 50[b..c] 51[n..o] 52[p..q]\n reserved 52\n max 15");
    let ManualStep::Job(choice) = pick_manual(&drawing.input(), &bottom) else {
        panic!("no job")
    };
    assert_eq!(described(Some(choice)), "rewrite L5->L5: L5 50 [b..c]");
    let none = ManualRange {
        rewrite_bottom: false,
        ..bottom
    };
    assert_eq!(pick_manual(&drawing.input(), &none), ManualStep::Done);
    let waits = draw("L0 (10,20]: 1[a..b]\n unsettled (0,10]");
    assert_eq!(pick_manual(&waits.input(), &none), ManualStep::Wait);
}

#[test]
fn soft_cuts_are_the_starts_of_the_tables_below() {
    let drawing = draw("L2: 1[a..c] 2[d..e] 3[f..g)");
    assert_eq!(
        soft_cuts(&drawing.version, 1, &KeyRange::closed(b"a", b"f")),
        [Key::from(*b"d"), Key::from(*b"f")]
    );
}

#[test]
fn scores_do_not_count_reserved_tables() {
    let drawing = draw(
        "trigger 4
         level1 20
         L0 (10,20]: 1[a..b]
         L0 (0,10]: 2[a..b]
         L1: 3[a..b] 4[c..d]
         reserved 2 3",
    );
    assert_eq!(scores(&drawing.input())[..3], [0.25, 0.5, 0.0]);
}

#[test]
fn lookups_in_vain_make_level_0_due_when_they_cost_as_much_as_the_compaction() {
    let level = "trigger 4
         level1 1000
         L0 (10,20]: 2[a..c]
         L0 (0,10]: 1[b..d]
         L1: 3[a..b] 4[d..e]*20 5[f..g]
         L2: 9[a..z]
        ";
    let moved = "merge L0->L1: L0 2 L0 1 L1 3+4 [a..e]";
    // The compaction reads 50 MiB and writes as much.
    picks("nothing", level);
    picks("nothing", &format!("{level} sought 1 99"));
    picks(moved, &format!("{level} sought 1 100"));
    picks(moved, &format!("{level} sought 1 40\n sought 2 60"));
    picks("nothing", &format!("{level} sought 1 100\n without seeks"));
    // Tables that a job has reserved do not count, and neither do runs that cannot move down.
    picks("nothing", &format!("{level} sought 1 100\n reserved 1"));
    let waits = format!("{level} unsettled (10,11]");
    picks("nothing", &format!("{waits}\n sought 2 1000"));
    picks(
        "merge L0->L1: L0 1 L1 3+4 [a..e]",
        &format!("{waits}\n sought 1 100"),
    );
    // Lookups end in tables with nothing beneath them, so moving these saves nothing.
    picks(
        "nothing",
        "trigger 4\n L0 (0,10]: 1[b..d]\n L1: 3[e..f]\n sought 1 9000",
    );
    picks(
        "merge L0->L1: L0 2 L0 1 [a..d]",
        "trigger 4\n L0 (10,20]: 2[a..c]\n L0 (0,10]: 1[b..d]\n L1: 3[e..f]\n sought 2 9000",
    );
    // The score is that of work which is due, and not a higher one.
    let sought = draw(&format!("{level} sought 1 9000"));
    assert_eq!(scores(&sought.input())[0], 1.0);
    let choice = pick(&sought.input()).unwrap();
    assert!(
        choice.by_seeks && choice.reason.contains("in vain"),
        "{}",
        choice.reason
    );
    let full = draw(&format!("{level} sought 1 9000").replace("trigger 4", "trigger 2"));
    assert!(!pick(&full.input()).unwrap().by_seeks);
}

#[test]
fn a_table_that_lookups_read_in_vain_goes_down_while_nothing_else_is_to_do() {
    let levels = "trigger 4
         level1 1000
         factor 10
         L0 (0,10]: 2[a..c]
         L1: 3[a..b] 4[d..e]*20 5[k..l] 6[x..y]
         L2: 7[a..e] 8[n..p]
         L3: 9[k..p]
        ";
    // With table 7 below it, table 3 costs 40 MiB and table 4 costs 60 MiB.
    picks("nothing", &format!("{levels} sought 3 39\n sought 4 59"));
    picks(
        "merge L1->L2: L1 3 L2 7 [a..e]",
        &format!("{levels} sought 3 40"),
    );
    picks(
        "merge L1->L2: L1 4 L2 7 [a..e]",
        &format!("{levels} sought 4 60"),
    );
    // The table that gains the most goes first.
    let two = format!("{levels} sought 3 40\n sought 8 9000");
    picks("merge L2->L3: L2 8 L3 9 [k..p]", &two);
    // A table with nothing right below it moves, and has nothing to do with other tables.
    picks("move L1->L2: L1 5 [k..l]", &format!("{levels} sought 5 20"));
    // Below table 6 there is nothing, so lookups end there, and table 9 is on the last level.
    picks(
        "nothing",
        &format!("{levels} sought 6 9000\n sought 9 9000"),
    );
    picks("nothing", &format!("{levels} sought 3 40\n without seeks"));
    // Other work comes first, and has the keyspace for itself.
    picks("nothing", &format!("{levels} sought 3 40\n reserved 8"));
    let due = format!("{levels} sought 3 9000").replace("trigger 4", "trigger 1");
    picks("merge L0->L1: L0 2 L1 3 [a..c]", &due);
    let choice = pick(&draw(&format!("{levels} sought 3 40")).input()).unwrap();
    assert!(
        choice.by_seeks && choice.reason.contains("in vain"),
        "{}",
        choice.reason
    );
}

#[test]
fn tombstones_are_kept_where_older_data_may_be() {
    let older = |text: &str| {
        let drawing = draw(text);
        let choice = pick(&drawing.input()).expect(text);
        let ranges = older_ranges(&drawing.version, &choice, &drawing.unsettled);
        ranges
            .iter()
            .map(KeyRange::to_string)
            .collect::<Vec<_>>()
            .join(" ")
    };
    let runs = "L0 (10,20]: 2[a..m]\n L0 (0,10]: 1[c..d]\n L1: 9[a..b] 8[x..z]\n";
    assert_eq!(older(runs), "");
    assert_eq!(
        older(&format!(
            "{runs} L2: 20[b..c] 21[y..z]\n L4: 40[c..e] 41[l..p]"
        )),
        "[b..e] [l..m]"
    );
    // Within level 0, everything below is older, and so are the older runs.
    let intra = "trigger 1
        L0 (30,40]: 4[a..m]
        L0 (20,30]: 3[a..m]
        L0 (0,20]: 1[c..d]
        L1: 9[l..z]
        reserved 1
        span 1 [a..z]
        intra 2 2";
    assert_eq!(older(intra), "[c..d] [l..m]");
    // A source that is not installed may have any key.
    assert_eq!(
        older(&format!("{intra}\n unsettled (0,0]\n unsettled (20,20]")),
        "[c..d] [l..m]"
    );
    let unsettled = "L0 (30,40]: 4[a..m]\n L0 (20,30]: 3[a..m]\n unsettled (0,20]\n intra 2 2";
    assert_eq!(older(unsettled), "[a..m]");
}

#[test]
fn hard_cuts_divide_the_bytes_evenly() {
    let drawing = draw(
        "L0 (10,20]: 2[a..z]*40
         L0 (0,10]: 1[a..z]*40
         L1: 10[a..c] 11[d..f] 12[g..i] 13[j..l] 14[m..o] 15[p..r] 16[s..u] 17[v..z]",
    );
    let choice = pick(&drawing.input()).unwrap();
    let none = |_: &TableMeta| Vec::new();
    let cuts = |parallel, min| {
        let cuts = hard_cuts(&choice, Division::Equal(parallel), min, &none);
        String::from_utf8(cuts.concat()).unwrap()
    };
    assert_eq!(cuts(4, 1), "gms");
    assert_eq!(cuts(2, 1), "m");
    assert_eq!(cuts(1, 1), "");
    assert_eq!(cuts(4, 1000 * MIB), "");
    assert_eq!(cuts(100, 1), "dgjmpsv");
    // Eight tables, and two runs that are spread evenly over them.
    let in_two = |first_share, min| {
        let division = Division::InTwo { first_share };
        let cuts = hard_cuts(&choice, division, min, &none);
        String::from_utf8(cuts.concat()).unwrap()
    };
    assert_eq!(in_two(0.5, 1), "m");
    assert_eq!(in_two(0.26, 1), "g");
    assert_eq!(in_two(0.9, 1), "v");
    // Each part has something, however small its share is.
    assert_eq!(in_two(0.01, 1), "d");
    assert_eq!(in_two(0.99, 1), "v");
    assert_eq!(in_two(0.5, 1000 * MIB), "");
    // With anchors, tables that span the whole range can be cut.
    let drawing = draw("L0 (10,20]: 2[a..z]*40\n L0 (0,10]: 1[a..z]*40");
    let choice = pick(&drawing.input()).unwrap();
    assert_eq!(
        hard_cuts(&choice, Division::Equal(4), 1, &none),
        Vec::<Key>::new()
    );
    let anchors = |_: &TableMeta| vec![Key::from(*b"g"), Key::from(*b"m"), Key::from(*b"s")];
    assert_eq!(
        hard_cuts(&choice, Division::Equal(4), 1, &anchors).concat(),
        b"gms"
    );
}

mod deletes;
mod drawing;
mod three_levels;
