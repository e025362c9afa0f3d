//! The results of fio.

use serde_json::Value;

use crate::cell::Values;
use crate::error::Error;

/// Throughput, and latency in the direction with more operations, of fio's only job or group, as `--output-format=json` has them.
pub(crate) fn values(json: &[u8]) -> Result<Values, Error> {
    // Warnings may stand before it.
    let begin = json.iter().position(|byte| *byte == b'{').unwrap_or(0);
    let json = serde_json::from_slice(&json[begin..]).ok();
    json.and_then(|json| parse(&json)).ok_or_else(|| Error::Load("fio has no results".into()))
}

fn parse(json: &Value) -> Option<Values> {
    let job = json.get("jobs")?.get(0)?;
    let iops = |direction: &str| job.get(direction)?.get("iops")?.as_f64();
    let (read, write) = (iops("read").unwrap_or(0.0), iops("write").unwrap_or(0.0));
    let latency = job.get(if read >= write { "read" } else { "write" })?.get("clat_ns")?;
    let percentile = |name: &str| Some(latency.get("percentile")?.get(name)?.as_f64()? / 1e3);
    Some(Values::from([
        ("iops", read + write),
        ("p50_us", percentile("50.000000")?),
        ("p99_us", percentile("99.000000")?),
        ("mean_us", latency.get("mean")?.as_f64()? / 1e3),
    ]))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn results_are_of_both_directions() {
        let direction = |iops: f64, us: u64| {
            json!({
                "iops": iops,
                "clat_ns": { "mean": us * 1000, "percentile": { "50.000000": us * 800, "99.000000": us * 2000 } }
            })
        };
        let none = json!({ "iops": 0.0, "clat_ns": { "mean": 0.0 } });
        let of = |iops, us: f64| {
            Values::from([("iops", iops), ("p50_us", us * 0.8), ("p99_us", us * 2.0), ("mean_us", us)])
        };
        for (read, write, expected) in [
            (&none, direction(2e3, 500), of(2e3, 500.0)),
            (&direction(2e3, 500), none.clone(), of(2e3, 500.0)),
            (&direction(1e3, 100), direction(2e3, 500), of(3e3, 500.0)),
        ] {
            let json = json!({ "jobs": [{ "read": read, "write": write }] });
            assert_eq!(values(format!("fio: a warning\n{json}").as_bytes()).unwrap(), expected);
        }
        let idle = json!({ "jobs": [{ "read": none, "write": none }] });
        assert!(values(idle.to_string().as_bytes()).is_err() && values(b"").is_err());
    }
}
