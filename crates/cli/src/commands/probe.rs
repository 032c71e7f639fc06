//! `silt device probe ADDR`: measures a device and the link to it, and predicts what it is worth.
//!
//! The measurements are those of `siltstone_device::probe`: the link, the device's machine, and the
//! same small merges in memory here and there. The prediction is a pure function of them. It is for
//! a host with the default options.
//!
//! Threading: one task. Other work on either machine makes the figures worse.

use serde_json::{Value, json};
use siltstone::Options;
use siltstone_device::probe::{
    Format, JOB_BYTES, JOB_SUBJOBS_MAX, Link, Machine, MergeRate, Prediction, Shape, Side, Verdict,
    merge, predict,
};
use siltstone_device::{Device, FolderWanted};
use siltstone_storage::Runtime;

use super::place;
use crate::args::ProbeArgs;
use crate::failure::{Failure, Outcome};
use crate::output::{Out, bytes, nanos, one_line, outln, plural};

/// What was measured of one format.
struct Merge {
    format: Format,
    here: MergeRate,
    there: MergeRate,
}

/// Everything that was measured.
struct Measured {
    name: String,
    slots: (u32, u32),
    keep_bytes: u64,
    machine: Machine,
    host_cores: u32,
    link: Link,
    merges: Vec<Merge>,
}

/// Runs the command.
pub fn run(args: &ProbeArgs) -> Result<Outcome, Failure> {
    let device = place::first_contact(&args.address, FolderWanted::None)?;
    let measured = measure(&device);
    device.close();
    let measured = measured?;
    let predictions = predictions(&measured);
    let mut out = Out::new();
    match args.json {
        true => outln!(out, "{}", to_json(&measured, &predictions))?,
        false => print(&mut out, &measured, &predictions)?,
    }
    out.finish()?;
    Ok(Outcome::Fine)
}

fn measure(device: &Device) -> Result<Measured, Failure> {
    let store_error = |error| Failure::from(siltstone::Error::from(error));
    let runtime = Runtime::threads();
    let machine = device.describe().map_err(store_error)?;
    let link = device.measure_link().map_err(store_error)?;
    let mut merges = Vec::new();
    for format in Format::all() {
        // One after the other, because both may be the same machine.
        let here = merge::measure(&runtime, format);
        let here = here.map_err(|error| Failure::Other(format!("a merge here failed: {error}")))?;
        let there = device.measure_merge(format).map_err(store_error)?;
        merges.push(Merge {
            format,
            here,
            there,
        });
    }
    let welcome = device.welcome();
    Ok(Measured {
        name: device.report().device,
        slots: welcome.as_ref().map_or((1, 1), |welcome| welcome.slots),
        keep_bytes: welcome.map_or(0, |welcome| welcome.keep_bytes),
        machine,
        host_cores: cores(),
        link,
        merges,
    })
}

/// The cores that this process may use.
pub fn cores() -> u32 {
    let cores = std::thread::available_parallelism().map_or(1, std::num::NonZero::get);
    u32::try_from(cores).unwrap_or(u32::MAX)
}

impl Measured {
    /// The threads of a job on the host. However many cores there are, the engine divides a job
    /// into at most as many subjobs as the option says.
    fn host_threads(&self) -> u32 {
        let subjobs = Options::default().subjobs_max.min(JOB_SUBJOBS_MAX);
        self.host_cores.min(subjobs).max(1)
    }

    /// The threads of a job on the device.
    fn device_threads(&self) -> u32 {
        let subjobs = self.slots.1.min(JOB_SUBJOBS_MAX);
        self.machine.cores.min(subjobs).max(1)
    }

    /// Why the device would refuse the job of this shape, if that is known. A device does not say
    /// whether it holds stores or shares folders.
    fn refusal(&self, shape: Shape) -> Option<String> {
        // Outputs need about as many bytes as inputs.
        let needed_bytes = 2 * JOB_BYTES;
        match (shape, self.keep_bytes) {
            (Shape::Held | Shape::Shared, _) => None,
            (Shape::Lent, 0) => Some("it runs without --keep".to_string()),
            (Shape::Lent, keep) if keep < needed_bytes => Some(format!(
                "it keeps {} for each host, and a job of {} needs {}",
                bytes(keep),
                bytes(JOB_BYTES),
                bytes(needed_bytes)
            )),
            (Shape::Lent, _) => None,
        }
    }
}

/// The predictions, by shape and then by format.
fn predictions(measured: &Measured) -> Vec<Prediction> {
    let of = |shape: Shape, merge: &Merge| {
        let host = Side {
            merge: merge.here,
            threads: measured.host_threads(),
        };
        let device = Side {
            merge: merge.there,
            threads: measured.device_threads(),
        };
        let (link, machine) = (&measured.link, &measured.machine);
        predict(shape, merge.format, link, &host, &device, machine)
    };
    let shapes = Shape::ALL.into_iter();
    shapes
        .flat_map(|shape| measured.merges.iter().map(move |merge| of(shape, merge)))
        .collect()
}

fn rate(bytes_per_s: f64) -> String {
    match bytes_per_s > 0.0 {
        true => format!("{}/s", bytes(bytes_per_s as u64)),
        false => "not known".to_string(),
    }
}

/// Bytes a second of a merge on one core.
fn merged(rate: &MergeRate) -> f64 {
    match rate.busy_ns() {
        0 => 0.0,
        ns => rate.in_bytes as f64 * 1e9 / ns as f64,
    }
}

fn known(bytes_of: u64) -> String {
    match bytes_of {
        0 => "not known".to_string(),
        known => bytes(known),
    }
}

fn print(out: &mut Out, measured: &Measured, predictions: &[Prediction]) -> Result<(), Failure> {
    let (machine, link) = (&measured.machine, &measured.link);
    outln!(
        out,
        "device     `{}`: {}, memory {}, {} at once with {} each",
        one_line(&measured.name),
        plural(machine.cores.into(), "core"),
        known(machine.memory_bytes),
        plural(measured.slots.0.into(), "compaction"),
        plural(measured.slots.1.into(), "thread"),
    )?;
    outln!(
        out,
        "storage    free {}; writes {} (synced), reads {}{}",
        machine.free_bytes.map_or("not known".to_string(), bytes),
        rate(machine.write_bytes_per_s as f64),
        rate(machine.read_bytes_per_s as f64),
        match machine.reads_are_direct {
            true => "",
            false => " (from the page cache)",
        }
    )?;
    outln!(
        out,
        "link       round trip {}; {} to the device, {} back; processor time here {:.2} ns a byte \
         sent, {:.2} received",
        nanos(link.round_trip_ns),
        rate(link.up_bytes_per_s),
        rate(link.down_bytes_per_s),
        link.up_cpu_ns_per_byte,
        link.down_cpu_ns_per_byte,
    )?;
    outln!(
        out,
        "here       {}",
        plural(measured.host_cores.into(), "core")
    )?;
    outln!(
        out,
        "a job      uses {} here (the default of `subjobs_max` is {}) and {} on the device",
        plural(measured.host_threads().into(), "thread"),
        Options::default().subjobs_max,
        plural(measured.device_threads().into(), "thread"),
    )?;
    outln!(out)?;
    outln!(out, "merges on one core, bytes of input tables")?;
    outln!(
        out,
        "  {:<8}{:>7}{:>14}{:>14}{:>8}",
        "codec",
        "values",
        "here",
        "device",
        "kept"
    )?;
    for Merge {
        format,
        here,
        there,
    } in &measured.merges
    {
        outln!(
            out,
            "  {:<8}{:>7}{:>14}{:>14}{:>7.0}%",
            format.codec_name(),
            format.value_bytes,
            rate(merged(here)),
            rate(merged(there)),
            100.0 * here.out_bytes as f64 / (here.in_bytes as f64).max(1.0)
        )?;
    }
    for shape in Shape::ALL {
        outln!(out)?;
        let refusal = measured.refusal(shape);
        outln!(out, "{}", heading(shape, measured, refusal.as_deref()))?;
        outln!(
            out,
            "  {:<8}{:>7}  {:<13}{:>10}{:>14}{:>14}{:>11}  {}",
            "codec",
            "values",
            "pays",
            "times",
            "device",
            "host",
            "host cpu",
            "the device waits for"
        )?;
        for p in predictions.iter().filter(|p| p.shape == shape) {
            outln!(
                out,
                "  {:<8}{:>7}  {:<13}{:>9.2}x{:>14}{:>14}{:>10.0}%  {}",
                p.format.codec_name(),
                p.format.value_bytes,
                match refusal {
                    None => p.verdict.word(),
                    Some(_) => "refused",
                },
                p.times_faster,
                rate(p.device_bytes_per_s),
                rate(p.host_bytes_per_s),
                -100.0 * p.spared_cpu,
                p.binds
            )?;
        }
    }
    outln!(out)?;
    outln!(
        out,
        "`times`: how fast a job of 64 MiB is on the device, compared with the host. `host cpu`: \
         how the\nprocessor time of the host changes. `spares-host`: not faster, but at most half \
         of that time."
    )?;
    outln!(
        out,
        "The figures hold if the host and the device have their cores for themselves."
    )
}

fn heading(shape: Shape, measured: &Measured, refusal: Option<&str>) -> String {
    match (shape, refusal) {
        (Shape::Held, _) => {
            "held: the tables lie on the device (silt://..., or --tables)".to_string()
        }
        (Shape::Shared, _) => {
            "shared: both see the folder of tables (silt device --share FOLDER)".to_string()
        }
        (Shape::Lent, Some(why)) => format!(
            "lent: tables are sent (this device refuses the job: {why}; the figures are for a \
             larger --keep)"
        ),
        (Shape::Lent, None) => format!(
            "lent: tables are sent (this device keeps {} for each host)",
            bytes(measured.keep_bytes)
        ),
    }
}

fn merge_json(rate: &MergeRate) -> Value {
    json!({
        "in_bytes": rate.in_bytes, "out_bytes": rate.out_bytes, "ns": rate.ns,
        "cpu_ns": rate.cpu_ns,
    })
}

fn to_json(measured: &Measured, predictions: &[Prediction]) -> Value {
    let (machine, link) = (&measured.machine, &measured.link);
    let merges = measured.merges.iter().map(|merge| {
        json!({
            "codec": merge.format.codec_name(), "value_bytes": merge.format.value_bytes,
            "host": merge_json(&merge.here), "device": merge_json(&merge.there),
        })
    });
    let predictions = predictions.iter().map(|p| {
        let refusal = measured.refusal(p.shape);
        json!({
            "shape": p.shape.to_string(), "codec": p.format.codec_name(),
            "value_bytes": p.format.value_bytes, "verdict": p.verdict.word(),
            "pays": refusal.is_none() && p.verdict != Verdict::No,
            "refused_because": refusal, "times_faster": p.times_faster,
            "device_bytes_per_s": p.device_bytes_per_s, "host_bytes_per_s": p.host_bytes_per_s,
            "spared_host_cpu": p.spared_cpu, "link_bytes_per_byte": p.link_bytes_per_byte,
            "binds": p.binds.to_string(),
        })
    });
    json!({
        "device": {
            "name": measured.name, "core_count": machine.cores,
            "memory_bytes": machine.memory_bytes, "free_bytes": machine.free_bytes,
            "write_bytes_per_s": machine.write_bytes_per_s,
            "read_bytes_per_s": machine.read_bytes_per_s,
            "reads_are_direct": machine.reads_are_direct, "slot_count": measured.slots.0,
            "parallelism": measured.slots.1, "keep_bytes": measured.keep_bytes,
            "job_thread_count": measured.device_threads(),
        },
        "host": {
            "core_count": measured.host_cores, "job_thread_count": measured.host_threads(),
        },
        "link": {
            "round_trip_ns": link.round_trip_ns, "up_bytes_per_s": link.up_bytes_per_s,
            "down_bytes_per_s": link.down_bytes_per_s,
            "up_cpu_ns_per_byte": link.up_cpu_ns_per_byte,
            "down_cpu_ns_per_byte": link.down_cpu_ns_per_byte,
        },
        "merges": merges.collect::<Vec<Value>>(),
        "predictions": predictions.collect::<Vec<Value>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A device with a fast link whose cores are as fast as those of the host.
    fn measured(host_cores: u32, device_cores: u32, parallelism: u32, keep_bytes: u64) -> Measured {
        let rate = MergeRate {
            in_bytes: 1_000_000,
            out_bytes: 750_000,
            ns: 20_000_000,
            cpu_ns: 20_000_000,
        };
        Measured {
            name: "dpu0".to_string(),
            slots: (1, parallelism),
            keep_bytes,
            machine: Machine {
                cores: device_cores,
                ..Machine::default()
            },
            host_cores,
            link: Link::default(),
            merges: Format::all()
                .into_iter()
                .map(|format| Merge {
                    format,
                    here: rate,
                    there: rate,
                })
                .collect(),
        }
    }

    #[test]
    fn a_job_uses_no_more_threads_than_it_has_subjobs() {
        for (host_cores, device_cores, parallelism, expected) in [
            (1, 1, 1, (1, 1)),
            (2, 4, 4, (2, 4)),
            (64, 4, 2, (2, 2)),
            (64, 64, 64, (2, 8)),
            // A device that does not know its cores has at least one.
            (4, 0, 4, (2, 1)),
        ] {
            let measured = measured(host_cores, device_cores, parallelism, 0);
            let threads = (measured.host_threads(), measured.device_threads());
            assert_eq!(
                threads, expected,
                "{host_cores} {device_cores} {parallelism}"
            );
            let json = to_json(&measured, &predictions(&measured));
            assert_eq!(json["host"]["job_thread_count"], expected.0);
            assert_eq!(json["device"]["job_thread_count"], expected.1);
            let times = f64::from(expected.1) / f64::from(expected.0);
            let shared = predictions(&measured);
            let mut shared = shared.iter().filter(|p| p.shape == Shape::Shared);
            assert!(shared.all(|p| (p.times_faster - times).abs() < 1e-9));
        }
    }

    #[test]
    fn a_shape_that_the_device_refuses_does_not_pay() {
        let needed = 2 * JOB_BYTES;
        for (keep_bytes, because) in [
            (0, Some("without --keep")),
            (needed / 2, Some("needs 128.0 MiB")),
            (needed, None),
        ] {
            let measured = measured(1, 4, 4, keep_bytes);
            let json = to_json(&measured, &predictions(&measured));
            for prediction in json["predictions"].as_array().unwrap() {
                // The device would pay in all shapes.
                assert_eq!(prediction["verdict"], "yes", "{prediction}");
                let because = because.filter(|_| prediction["shape"] == "lent");
                assert_eq!(prediction["pays"], because.is_none(), "{prediction}");
                match because {
                    None => assert!(prediction["refused_because"].is_null(), "{prediction}"),
                    Some(text) => {
                        let said = prediction["refused_because"].as_str().unwrap();
                        assert!(said.contains(text), "{said}");
                    }
                }
            }
        }
    }
}
