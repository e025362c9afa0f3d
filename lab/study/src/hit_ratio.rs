//! Hit ratios of caches: requests, simulated policies, a partition of ours, and servers.

pub(crate) mod policies;
mod queues;
pub(crate) mod requests;

use std::net::SocketAddr;
use std::time::Duration;

use peer::memcached::{Client, Command};

use crate::error::{Doing, Error};
use policies::Policy;
use requests::{Request, Requests};

/// Requests that are sent at a time.
const BATCH_COUNT: usize = 32;
/// Time limit of an answer.
const PATIENCE: Duration = Duration::from_secs(10);

/// The hit ratio of a simulated policy.
pub(crate) fn simulated(requests: &Requests, policy: &mut dyn Policy) -> Result<f64, Error> {
    requests.hit_ratio(BATCH_COUNT, |batch, are_hits| {
        are_hits.extend(batch.iter().map(|&request| policy.request(request)));
        Ok(())
    })
}

/// The hit ratio of a partition in this process.
pub(crate) fn in_process(requests: &Requests, memory_bytes: usize) -> Result<f64, Error> {
    let settings = kv::Settings { memory_bytes, seed: 1, ..kv::Settings::default() };
    let mut partition = kv::Processor::new(settings).doing("memory of a partition")?;
    let value = value(requests);
    requests.hit_ratio(BATCH_COUNT, |batch, are_hits| {
        for request in batch {
            let key = key(request);
            let hash = partition.hash(key.as_bytes());
            let place = partition.find(hash, key.as_bytes());
            are_hits.push(place.is_some());
            match place {
                Some(place) => partition.touch(place),
                None => {
                    let value = &value[..request.bytes as usize];
                    let attributes = kv::Attributes::default();
                    // A value that does not fit is no hit the next time.
                    let _ = partition.put(hash, key.as_bytes(), value, attributes, None);
                }
            }
        }
        Ok(())
    })
}

/// The hit ratio of a server: keys that are missed are stored after the gets of a batch.
pub(crate) fn served(requests: &Requests, place: SocketAddr) -> Result<f64, Error> {
    let mut client = Client::connect(place, PATIENCE).doing("connect to a server")?;
    let value = value(requests);
    let wrong = |answer: String| Error::Load(format!("a server answered {answer:?}"));
    requests.hit_ratio(BATCH_COUNT, |batch, are_hits| {
        let keys: Vec<_> = batch.iter().map(key).collect();
        let mut bytes = Vec::new();
        keys.iter().for_each(|key| Command::Get.write(key, &mut bytes));
        client.send(&bytes).map_err(|finding| wrong(finding.to_string()))?;
        bytes.clear();
        let mut missed_count = 0;
        for (request, key) in batch.iter().zip(&keys) {
            let line = line(&mut client)?;
            let is_hit = line != "END";
            are_hits.push(is_hit);
            if is_hit {
                client.value(key, &line).map_err(|finding| wrong(finding.to_string()))?;
            } else {
                Command::Set(&value[..request.bytes as usize]).write(key, &mut bytes);
                missed_count += 1;
            }
        }
        client.send(&bytes).map_err(|finding| wrong(finding.to_string()))?;
        for _ in 0..missed_count {
            let answer = line(&mut client)?;
            if answer != "STORED" {
                return Err(wrong(answer));
            }
        }
        Ok(())
    })
}

fn line(client: &mut Client) -> Result<String, Error> {
    let line = client.next_line().map_err(|finding| Error::Load(finding.to_string()))?;
    line.ok_or_else(|| Error::Load("a server closed the connection".into()))
}

fn key(request: &Request) -> String {
    format!("key-{:012}", request.key)
}

/// Bytes of the longest value.
fn value(requests: &Requests) -> Vec<u8> {
    vec![b'7'; requests.all.iter().map(|request| request.bytes as usize).max().unwrap_or(0)]
}
