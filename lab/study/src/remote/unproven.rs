//! Connections that have not proven the token: few at a time, and a new one always gets a place.

use std::io;
use std::net::{Shutdown, SocketAddr, TcpStream};
use std::sync::{Mutex, MutexGuard, PoisonError};

use reactor::Source;

/// Connections at a time. The owner of the token proves it within a round trip, in which fewer others come.
const COUNT_MAX: usize = 64;

/// Connections that have not proven the token.
#[derive(Debug, Default)]
pub(super) struct Unproven(Mutex<Connections>);

#[derive(Debug, Default)]
struct Connections {
    /// Oldest first.
    waiting: Vec<Connection>,
    /// Number of the latest connection.
    latest: u64,
    /// Connections closed for newer ones that are not reported yet.
    closed_count: u64,
}

#[derive(Debug)]
struct Connection {
    number: u64,
    source: Source,
    /// The socket, to close it.
    stream: TcpStream,
}

/// The place of one connection, until it is dropped.
#[derive(Debug)]
pub(super) struct Place<'a> {
    all: &'a Unproven,
    number: u64,
}

impl Unproven {
    /// Gives a connection a place. If there is none, the oldest connection of the address with the most of them is
    /// closed.
    pub(super) fn admit(&self, stream: &TcpStream, peer: SocketAddr) -> io::Result<Place<'_>> {
        let stream = stream.try_clone()?;
        let mut all = self.lock();
        if all.waiting.len() >= COUNT_MAX {
            all.close_one();
        }
        all.latest += 1;
        let number = all.latest;
        all.waiting.push(Connection { number, source: Source::from(peer.ip()), stream });
        Ok(Place { all: self, number })
    }

    /// Connections that were closed for newer ones since the last call.
    pub(super) fn take_closed_count(&self) -> u64 {
        std::mem::take(&mut self.lock().closed_count)
    }

    fn lock(&self) -> MutexGuard<'_, Connections> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Connections {
    fn close_one(&mut self) {
        let count_of = |source| self.waiting.iter().filter(|other| other.source == source).count();
        // Of equals `max_by_key` takes the last, so the oldest comes last.
        let oldest_of_most =
            self.waiting.iter().enumerate().rev().max_by_key(|(_, one)| count_of(one.source));
        let Some((at, _)) = oldest_of_most else { return };
        // Its session sees the end of the connection.
        let _ = self.waiting.remove(at).stream.shutdown(Shutdown::Both);
        self.closed_count += 1;
    }
}

impl Place<'_> {
    /// Whether the connection was closed for a newer one.
    pub(super) fn is_lost(&self) -> bool {
        !self.all.lock().waiting.iter().any(|one| one.number == self.number)
    }
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.all.lock().waiting.retain(|one| one.number != self.number);
    }
}

#[cfg(test)]
mod tests {
    use std::io::Read;
    use std::net::{Ipv4Addr, TcpListener};

    use super::*;

    /// A connection: the end that is served, and the other.
    fn pair(listener: &TcpListener) -> (TcpStream, TcpStream) {
        let far = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        (listener.accept().unwrap().0, far)
    }

    fn is_closed(far: &mut TcpStream) -> bool {
        far.set_nonblocking(true).unwrap();
        matches!(far.read(&mut [0]), Ok(0))
    }

    #[test]
    fn the_oldest_connection_of_the_address_with_the_most_gives_way() {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let all = Unproven::default();
        // One address with one connection, the oldest of all, and networks with the rest.
        let mut ends = Vec::new();
        let mut places = Vec::new();
        let peer_of = |number: usize| match number {
            0 => "192.0.2.1:1".to_owned(),
            number if number % 2 == 0 => format!("[2001:db8:0:1::{number:x}]:1"),
            number => format!("[2001:db8:0:2::{number:x}]:1"),
        };
        for number in 0..=COUNT_MAX {
            let (near, far) = pair(&listener);
            places.push(all.admit(&near, peer_of(number).parse().unwrap()).unwrap());
            ends.push((near, far));
        }
        // 32 of the second network (odd numbers), one less of the first when the last one came.
        let closed: Vec<usize> = (0..=COUNT_MAX).filter(|number| is_closed(&mut ends[*number].1)).collect();
        assert_eq!(closed, [1]);
        assert!(places[1].is_lost() && !places[0].is_lost());
        assert_eq!((all.take_closed_count(), all.take_closed_count()), (1, 0));
        // A place that was given up is free again.
        places.pop();
        let (near, _far) = pair(&listener);
        let _place = all.admit(&near, "192.0.2.2:1".parse().unwrap()).unwrap();
        assert_eq!(all.take_closed_count(), 0);
    }
}
