//! The memory for a keyspace's gaps stays within its bounds, whichever keys come to life in them.

use super::map::after;
use super::state::*;

/// A state with one gap from `start` to `end`, both hidden.
fn with_gap(start: &[u8], end: &[u8]) -> State {
    let mut state = State::default();
    state.arm(Some(1));
    let watch = state
        .watch(1, Way::Forward, start)
        .expect("nothing was invalidated");
    assert!(state.finish(watch, 1, &after(end), 1 << 30));
    state
}

/// The bounds that `docs/rfc/0005-gaps.md` promises.
fn assert_bounded(state: &State) {
    let (gaps, bytes) = (state.map().len(), state.map().key_bytes());
    assert!(gaps <= 4096, "{gaps} gaps");
    assert!(bytes <= 1 << 20, "{bytes} bytes of keys");
}

#[test]
fn puts_that_cut_one_gap_into_many_keep_to_the_bounds() {
    let key = |i: u32| i.to_be_bytes();
    for group in [1, 7, 20_000] {
        let mut state = with_gap(&key(0), &key(40_001));
        let keys: Vec<[u8; 4]> = (0..20_000).map(|i| key(2 * i + 1)).collect();
        for (i, keys) in keys.chunks(group).enumerate() {
            let alive = keys.iter().map(|key| (&key[..], &key[..]));
            state.invalidate(alive, 2 + i as u64, true, 16);
            assert_bounded(&state);
        }
        let gaps = state.map().len();
        assert!(gaps > 1000, "{gaps} gaps of groups of {group}");
        assert!(keys.iter().all(|key| state.map().find(key).is_none()));
    }
}

#[test]
fn gaps_between_long_keys_keep_to_the_bounds() {
    let key = |i: u32| [&i.to_be_bytes()[..], &[0; 65_531]].concat();
    let mut state = with_gap(&key(0), &key(201));
    for i in 0..100 {
        let key = key(2 * i + 1);
        let alive = std::iter::once((&key[..], &key[..]));
        state.invalidate(alive, u64::from(2 + i), true, 16);
        assert_bounded(&state);
    }
    assert!(state.map().len() > 3);
}
