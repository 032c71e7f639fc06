//! Jobs over three levels, and picks with the first two scores switched off.

use super::*;

/// Level 1 has five times its target, and level 2 one and a half.
const DUE: &str = "three levels
    level1 10
    factor 2
    L1: 1[a..c]*50
    L2: 10[b..f]*30
    L3: 20[e..g]*10 21[x..z]*10";

#[test]
fn a_job_goes_through_a_level_that_is_due() {
    picks("merge L1->L3: L1 1 L2 10 L3 20 [a..g]", DUE);
    picks(
        "merge L1->L2: L1 1 L2 10 [a..f]",
        &DUE.replace("three levels", ""),
    );
    // Level 2 has less than its target.
    picks(
        "merge L1->L2: L1 1 L2 10 [a..f]",
        &DUE.replace("10[b..f]*30", "10[b..f]*20"),
    );
    // Nothing of level 3 would be merged.
    picks(
        "merge L1->L2: L1 1 L2 10 [a..f]",
        &DUE.replace("20[e..g]*10", "20[g..h]*10"),
    );
    // What is moved is not written at all.
    picks(
        "move L1->L2: L1 1 [a..c]",
        &DUE.replace("10[b..f]*30", "10[d..f]*30"),
    );
}

#[test]
fn a_job_takes_no_more_of_the_lowest_level_than_of_the_others() {
    let at_most = DUE.replace("20[e..g]*10", "20[c..d]*40 22[e..g]*40");
    picks("merge L1->L3: L1 1 L2 10 L3 20+22 [a..g]", &at_most);
    picks(
        "merge L1->L2: L1 1 L2 10 [a..f]",
        &at_most.replace("20[c..d]*40", "20[c..d]*41"),
    );
}

#[test]
fn a_job_over_three_levels_gives_way_to_others() {
    let two = "merge L1->L2: L1 1 L2 10 [a..f]";
    for line in ["reserved 20", "span 3 [g..h]", "max 89"] {
        picks(two, &format!("{DUE}\n{line}"));
    }
    let three = "merge L1->L3: L1 1 L2 10 L3 20 [a..g]";
    // These do not touch what it passes and where it writes.
    for line in ["span 1 [d..g]", "span 2 [g..h]", "span 3 [h..z]", "max 90"] {
        picks(three, &format!("{DUE}\n{line}"));
    }
}

#[test]
fn every_level_that_is_passed_is_reserved() {
    let of = |text: &str| {
        let drawing = draw(text);
        let reservation = pick(&drawing.input()).unwrap().reservation();
        let spans = reservation.spans.iter();
        spans
            .map(|(level, range)| format!("{level} {range}"))
            .collect::<Vec<_>>()
    };
    assert_eq!(of(DUE), ["1 [a..c]", "2 [a..f]", "3 [a..g]"]);
    // No table of level 2 is merged, but table 1 passes the gap between two of them.
    let gap = DUE
        .replace("1[a..c]*50", "1[f..h]^*50")
        .replace("10[b..f]*30", "10[a..b]*30 11[x..y]*5");
    picks("merge L1->L3: L1 1 L3 20 [e..h]", &gap);
    assert_eq!(of(&gap), ["1 [f..h]", "2 [f..h]", "3 [e..h]"]);
    // From level 0, all levels have the whole range.
    assert_eq!(of(FROM_LEVEL_0), ["1 [a..k]", "2 [a..k]"]);
    let two = FROM_LEVEL_0.replace("three levels", "");
    assert_eq!(of(&two), ["1 [a..d]"]);
}

/// Level 0 has three times its runs, and level 1 one and a half of its target.
const FROM_LEVEL_0: &str = "three levels
    trigger 1
    level1 10
    factor 2
    L0 (20,30]: 3[b..c]
    L0 (10,20]: 2[a..b]
    L0 (0,10]: 1[a..c]
    L1: 10[b..d]*10 11[m..n]*5
    L2: 20[d..k]*10";

#[test]
fn level_0_goes_through_its_base_level() {
    let three = "merge L0->L2: L0 3 L0 2 L0 1 L1 10 L2 20 [a..k]";
    picks(three, FROM_LEVEL_0);
    picks(three, &format!("{FROM_LEVEL_0}\nspan 1 [l..n]"));
    // A job works on the base level where only the wider range reaches.
    let two = "merge L0->L1: L0 3 L0 2 L0 1 L1 10 [a..d]";
    picks(two, &format!("{FROM_LEVEL_0}\nspan 1 [g..h]"));
    picks(two, &format!("{FROM_LEVEL_0}\nspan 2 [g..h]"));
}

#[test]
fn a_job_that_is_passed_by_keeps_the_level_between() {
    let gap = "three levels
        level1 10
        factor 2
        L1: 1[f..h]^*50
        L2: 10[a..b]!*30 11[x..y]!*5
        L3: 20[e..g]*10";
    let drawing = draw(gap);
    let passing = pick(&drawing.input()).unwrap();
    assert_eq!(
        described(Some(passing.clone())),
        "merge L1->L3: L1 1 L3 20 [e..h]"
    );
    // Tables 10 and 11 are rewritten together for their deletes, into one that may overlap table 1.
    let quiet = draw(&gap.replace("level1 10", "level1 1000"));
    let rewrite = pick_deletes(&quiet.input(), &quiet.deletes);
    assert_eq!(described(rewrite), "rewrite L2->L2: L2 10+11 [a..y]");
    // While the job runs, they are rewritten one by one.
    let jobs = [passing.reservation()];
    let input = PickInput {
        jobs: &jobs,
        ..quiet.input()
    };
    let rewrite = pick_deletes(&input, &quiet.deletes);
    assert_eq!(described(rewrite), "rewrite L2->L2: L2 10 [a..b]");
}

#[test]
fn without_the_first_score_reserved_tables_count() {
    let level = "level1 10
        L1: 1[a..c]*9 2[d..f]*9
        reserved 1";
    picks("nothing", level);
    picks(
        "move L1->L2: L1 2 [d..f]",
        &format!("{level}\nwithout first"),
    );
    let runs = "trigger 2
        L0 (10,20]: 2[e..f]
        L0 (0,10]: 1[a..b]
        reserved 1";
    picks("nothing", runs);
    picks(
        "move L0->L1: L0 2 [e..f]",
        &format!("{runs}\nwithout first"),
    );
}

#[test]
fn without_the_second_score_the_next_free_table_goes() {
    let level = "level1 10
        L1: 1[a..c]*9 2[d..f]*9 3[g..i]*9
        L2: 10[a..a] 11[b..b] 12[d..d] 13[e..e] 14[h..h]";
    picks("merge L1->L2: L1 3 L2 14 [g..i]", level);
    let without = format!("{level}\nwithout second");
    picks("merge L1->L2: L1 1 L2 10+11 [a..c]", &without);
    picks(
        "merge L1->L2: L1 2 L2 12+13 [d..f]",
        &format!("{without}\nreserved 11"),
    );
    // The pick after the last table begins with the first one again, whatever the ids are.
    let turned = "level1 10
        L1: 4[a..c]*9 2[d..f]*9 3[g..i]*9
        L2: 10[a..a] 11[b..b] 12[d..d] 13[e..e] 14[h..h]
        without second";
    let drawing = draw(turned);
    for (last, expected) in [
        ("a", "merge L1->L2: L1 2 L2 12+13 [d..f]"),
        ("b", "merge L1->L2: L1 2 L2 12+13 [d..f]"),
        ("d", "merge L1->L2: L1 3 L2 14 [g..i]"),
        ("g", "merge L1->L2: L1 4 L2 10+11 [a..c]"),
    ] {
        let mut last_picked = NOTHING_PICKED.clone();
        last_picked[1] = Some(Key::from(last.as_bytes()));
        let input = PickInput {
            last_picked: &last_picked,
            ..drawing.input()
        };
        let choice = pick(&input);
        let picked = choice
            .as_ref()
            .and_then(Choice::picked)
            .map(|(level, _)| level);
        assert_eq!(picked, Some(1));
        assert_eq!(described(choice), expected, "after {last}");
    }
}
