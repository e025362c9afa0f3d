//! `tls`: the cost of TLS and authentication.

mod connects;
mod flood;
mod idle;
mod throughput;

use super::prelude::*;
use crate::bench::on_core;
use crate::keys::Keys;
use crate::side_load::Place;
use crate::target_options::KeyAccess;

pub(crate) const ABOUT: About = About {
    name: "tls",
    title: "What do TLS and authentication cost?",
    method: "One lane on a namespace that discards all data, one core for each side, TLS_AES_128_GCM_SHA256. Each load in cleartext, \
             then with TLS; each measurement with TLS follows one of its ceiling: sockets that move the same bytes through the \
             same TLS streams, without NVMe. A thousand idle lanes in cleartext and with TLS. Associations that connect one after the \
             other, each with two queues. A lane beside 100 connects a second, and beside a flood of ffdhe4096 \
             exponentiations, to its own target or to a second one, which shows what the connecting hosts take from the \
             lane's host. Ratios are taken within each round. Between two machines the second target has the second core of the study \
             server; without one it is left out. The keys go to the server in cleartext.",
    claims: &[],
    machines: Machines::OneOrTwo,
    judged_by: "share",
    columns: "share iops ceiling_iops mib_per_s p50_us ceiling_p50_us p99_us host_us target_us cpu_percent \
              bytes_per_lane connect_ms iops_per_host_s beside_per_s",
};

/// TLS and authentication.
#[derive(Debug, Default)]
pub(crate) struct Tls {
    targets: Targets,
}

/// The targets of this experiment, and their keys.
#[derive(Debug, Default)]
struct Targets {
    clear: Kept<(), Served>,
    tls: Kept<(), Served>,
    authenticating: Kept<(), Served>,
    decoy: Kept<(), Served>,
    // After the targets: it removes the files that they read.
    keys: Kept<(), Keys>,
}

impl Targets {
    fn keys(&mut self) -> Result<&Keys, Error> {
        Ok(&*self.keys.get((), Keys::generate)?)
    }

    /// Without TLS.
    fn clear(&mut self, bench: &Bench) -> Result<&Served, Error> {
        Ok(&*self.clear.get((), || bench.serve())?)
    }

    /// Requires TLS.
    fn tls(&mut self, bench: &Bench) -> Result<&Served, Error> {
        let Self { tls, keys, .. } = self;
        let keys = keys.get((), Keys::generate)?;
        Ok(&*tls.get((), || bench.serve_with(options(keys, KeyAccess::Tls).on_cores(1)))?)
    }

    /// A target that requires each host to authenticate, and allows TLS with the configured key and by concatenation.
    fn authenticating(&mut self, bench: &Bench) -> Result<(&Served, &Keys), Error> {
        let Self { authenticating, keys, .. } = self;
        let keys = &*keys.get((), Keys::generate)?;
        Ok((
            &*authenticating
                .get((), || bench.serve_with(options(keys, KeyAccess::Authentication).on_cores(1)))?,
            keys,
        ))
    }

    /// As [`authenticating`](Self::authenticating), at the place of threads beside a measured lane, or on the second core of a
    /// study server.
    fn decoy(&mut self, bench: &Bench, place: &Place) -> Result<&Served, Error> {
        let Self { decoy, keys, .. } = self;
        let keys = keys.get((), Keys::generate)?;
        let options = options(keys, KeyAccess::Authentication);
        if bench.is_remote() {
            return Ok(&*decoy.get((), || bench.serve_with(options.behind_cores(1).on_cores(1)))?);
        }
        let options = ServedOptions { core: place.first_core(), ..options };
        let start = || {
            on_core(None, || {
                place.enter(0)?;
                bench.serve_with(options)
            })
        };
        Ok(&*decoy.get((), start)?)
    }
}

/// A target with keys.
fn options(keys: &Keys, access: KeyAccess) -> ServedOptions {
    ServedOptions { keys: Some(keys.files(access)), ..ServedOptions::of(["null:1T"]) }
}

impl Experiment for Tls {
    fn cells(&self) -> Vec<Cell> {
        throughput::cells().chain(connects::cells()).chain(flood::cells()).chain(idle::cells()).collect()
    }

    fn suits(&self, cell: &Cell, bench: &Bench) -> bool {
        flood::suits(cell, bench)
    }

    fn check(&self, bench: &Bench) -> Result<(), Error> {
        idle::check(bench)
    }

    fn spins(&self, cell: &Cell) -> bool {
        cell.text("kind") == throughput::KIND
    }

    fn is_disturbed_by_others(&self, cell: &Cell) -> bool {
        cell.text("kind") != idle::KIND
    }

    fn measure(&mut self, cell: &Cell, bench: &Bench) -> Result<Values, Error> {
        let targets = &mut self.targets;
        match cell.text("kind") {
            throughput::KIND => throughput::measure(targets, cell, bench),
            connects::KIND => connects::measure(targets, cell, bench),
            flood::KIND => flood::measure(targets, cell, bench),
            _ => idle::measure(targets, cell, bench),
        }
    }

    fn answer(&self, measured: &Measured, headlines: &mut Headlines) {
        throughput::answer(measured, headlines);
        idle::answer(measured, headlines);
        connects::answer(measured, headlines);
        flood::answer(measured, headlines);
    }

    fn figures(&self, measured: &Measured) -> Vec<Figure> {
        let mut figures = throughput::figures(measured);
        figures.push(connects::figure(measured));
        figures.extend(flood::figures(measured));
        figures.push(idle::figure(measured));
        figures
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::experiments::testing::{headline_of, of_key};

    #[test]
    fn each_bar_is_judged_by_its_own_cells() {
        let headline = headline_of(&Tls::default(), |cell| {
            let is_tls = cell.name.ends_with("tls");
            let is_same = cell.name.ends_with("same target");
            [
                ("share", if cell.name == "write 128k qd32 tls" { 0.85 } else { 0.95 }),
                ("iops", if is_tls { 45.0 } else { 100.0 }),
                ("p50_us", if is_tls { 13.0 } else { 10.0 }),
                ("p99_us", if is_same { 300.0 } else { 200.0 }),
                ("bytes_per_lane", if is_tls { 30_000.0 } else { 10_000.0 }),
                ("cpu_percent", if is_tls { 0.6 } else { 0.1 }),
                ("connect_ms", if is_tls { 12.0 } else { 25.0 }),
                ("iops_per_host_s", if is_same { 85.0 } else { 100.0 }),
                ("beside_per_s", 99.0),
            ]
        });
        let (first, of) = (&headline[0], |key: &str| {
            let headline = of_key(&headline, key);
            (headline.value, headline.is_reached())
        });
        assert_eq!((first.key.as_str(), first.value, first.is_reached()), ("share_min", 0.85, Some(false)));
        assert_eq!(of("share_read_4k_qd1"), (0.95, Some(true)));
        assert_eq!(of("share_write_128k_qd32"), (0.85, Some(false)));
        assert_eq!(of("read_4k_qd1_added_p50_us"), (3.0, Some(true)));
        assert_eq!(of("read_128k_qd32_tls_over_clear"), (0.45, Some(false)));
        assert_eq!(of("read_128k_qd1_tls_over_clear").1, None);
        assert_eq!(of("write_128k_qd32_tls_over_clear").1, None);
        assert_eq!(of("idle_lane_added_bytes"), (20_000.0, Some(true)));
        assert_eq!(of("idle_1000_lanes_cpu_percent"), (0.6, Some(false)));
        assert_eq!(of("connect_ffdhe2048_tls_ms"), (12.0, Some(true)));
        assert_eq!(of("connect_ffdhe2048_ms").1, None);
        assert_eq!(of("iops_beside_100_connects_over_alone"), (0.85, Some(true)));
        assert_eq!(of("p99_beside_ffdhe4096_flood_over_other_target"), (1.5, None));
    }

    #[test]
    fn fewer_connects_than_scheduled_say_nothing_about_the_lane() {
        let headline = headline_of(&Tls::default(), |_| [("iops_per_host_s", 100.0), ("beside_per_s", 60.0)]);
        assert!(headline.iter().all(|headline| !headline.key.contains("100_connects")));
        assert!(headline.iter().any(|headline| headline.key == "ffdhe4096_exponentiations_per_s"));
    }

    #[test]
    fn a_target_is_told_its_keys_by_file() {
        let keys = Keys::generate().unwrap();
        let words = keys.files(KeyAccess::Authentication).arguments().join(" ");
        assert!(
            words.starts_with("--tls allowed --tls-key /") && words.contains(" --dhchap-secret /"),
            "{words}"
        );
        assert!(!words.contains("DHHC-1:") && !words.contains("NVMeTLSkey"));
    }
}
