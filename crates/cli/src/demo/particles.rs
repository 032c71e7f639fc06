//! The particles that the store must hold. They are recomputed from the simulation, and not copied
//! from what was written.

use siltstone_plasma::{KEY_BYTES, Simulation, VALUE_BYTES, encode_key, encode_value};

/// The simulation at every dump, and the changes that were made in the store since.
pub struct Particles {
    /// The plasma at each dump.
    dumps: Vec<Simulation>,
    /// Whether the changes of [`Particles::altered`] were made.
    pub altered: bool,
}

/// The change that later writes make to a particle of dump 0.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Change {
    /// Its value is overwritten with all bits inverted.
    Overwritten,
    /// It is deleted.
    Deleted,
    /// A range delete covers it.
    RangeDeleted,
}

impl Particles {
    /// The plasma at these dumps.
    pub fn new(dumps: Vec<Simulation>) -> Particles {
        Particles {
            dumps,
            altered: false,
        }
    }

    /// The number of dumps.
    pub fn dump_count(&self) -> u64 {
        self.dumps.len() as u64
    }

    /// The number of particles in each dump.
    pub fn particle_count(&self) -> u64 {
        self.dumps.first().map_or(0, Simulation::particle_count)
    }

    /// The time of a dump, in units of the plasma.
    pub fn time(&self, dump: u64) -> f64 {
        self.dumps.get(dump as usize).map_or(0.0, Simulation::time)
    }

    /// The value that was written for a particle at a dump.
    pub fn original(&self, dump: u64, id: u64) -> Option<[u8; VALUE_BYTES]> {
        self.dumps
            .get(dump as usize)?
            .record(dump, id)
            .as_ref()
            .map(encode_value)
    }

    /// The change to a particle once [`Particles::altered`] is set.
    pub fn change(&self, dump: u64, id: u64) -> Option<Change> {
        let n = self.particle_count();
        let ranged = n / 2..n / 2 + n / 20;
        match (dump, id % 4) {
            (0, _) if ranged.contains(&id) => Some(Change::RangeDeleted),
            (0, 0) => Some(Change::Overwritten),
            (0, 1) => Some(Change::Deleted),
            _ => None,
        }
    }

    /// The ids of dump 0 that the range delete covers, as keys.
    pub fn deleted_range(&self) -> ([u8; KEY_BYTES], [u8; KEY_BYTES]) {
        let n = self.particle_count();
        (encode_key(0, n / 2), encode_key(0, n / 2 + n / 20))
    }

    /// The value that the store must return now, if any.
    pub fn expected(&self, dump: u64, id: u64) -> Option<[u8; VALUE_BYTES]> {
        let original = self.original(dump, id)?;
        match self.change(dump, id).filter(|_| self.altered) {
            None => Some(original),
            Some(Change::Overwritten) => Some(original.map(|b| !b)),
            Some(Change::Deleted | Change::RangeDeleted) => None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use siltstone_plasma::Config;

    #[test]
    fn changes_touch_dump_0_only_and_every_kind_happens() {
        let simulation = Simulation::new(Config {
            particles: 400,
            ..Config::default()
        })
        .unwrap();
        let mut particles = Particles::new(vec![simulation.clone(), simulation]);
        let mut counts = [0; 3];
        for id in 0..400 {
            assert_eq!(particles.change(1, id), None);
            if let Some(change) = particles.change(0, id) {
                counts[change as usize] += 1;
                let (start, end) = particles.deleted_range();
                let key = encode_key(0, id);
                assert_eq!(
                    change == Change::RangeDeleted,
                    (start..end).contains(&key),
                    "{id}"
                );
            }
            assert_eq!(particles.expected(0, id), particles.original(0, id));
        }
        assert_eq!(counts, [95, 95, 20]);
        particles.altered = true;
        assert_eq!(particles.expected(0, 1), None);
        assert_eq!(particles.expected(0, 200), None);
        assert_ne!(particles.expected(0, 4), particles.original(0, 4));
        assert_eq!(particles.expected(1, 4), particles.original(1, 4));
        assert_eq!(particles.expected(2, 0), None);
        assert_eq!(particles.expected(0, 400), None);
    }
}
