//! Asynchronous events of a controller: requests that wait, events that wait, and which are masked. wire §13
//!
//! ```text
//! raise ─▶ pending ──a request is there──▶ sent, masked ──its log is read without RAE──▶ may be raised again
//!             └────────────its log is read without RAE, before a request came───────────────────▲
//! ```
//!
//! A log may be read in parts, and the read from offset 0 takes it as it is: a read without RAE of any part clears only
//! events raised before that. An event that is raised later is in the next log, so it is sent, or sent again.

use wire::async_event::{AsyncEvent, AsyncEventType, AsyncEvents};
use wire::log::Lid;
use wire::status::Status;

/// Requests that may wait at once.
pub const REQUEST_COUNT_MAX: usize = 4;

/// The asynchronous events of one controller, and the host's event requests. `T` identifies a request.
#[derive(Debug)]
pub struct AsyncEventQueue<T> {
    enabled: AsyncEvents,
    requests: Vec<T>,
    pending: Vec<Pending>,
    masked: Vec<Masked<T>>,
}

/// An event that waits for a request.
#[derive(Debug)]
struct Pending {
    event: AsyncEvent,
    /// Its log was taken since it was raised last.
    is_in_log: bool,
}

/// An event that was sent and not cleared.
#[derive(Debug)]
struct Masked<T> {
    event: AsyncEvent,
    /// The request that it completed, until another has its id.
    request: Option<T>,
    log: LogOfMasked,
}

/// The log of a masked event, since the event was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum LogOfMasked {
    /// Not taken.
    NotTaken,
    /// Taken: reading it without RAE clears the event.
    Taken,
    /// The event was raised again after it was taken: reading it without RAE clears the event, which is sent again.
    Outdated,
}

impl<T> Default for AsyncEventQueue<T> {
    fn default() -> Self {
        Self { enabled: AsyncEvents::empty(), requests: Vec::new(), pending: Vec::new(), masked: Vec::new() }
    }
}

impl<T: Clone + PartialEq> AsyncEventQueue<T> {
    /// Accepts an event request of the host.
    ///
    /// # Errors
    /// The status to refuse it with if too many wait already.
    pub fn on_request(&mut self, request: T) -> Result<(), Status> {
        // An earlier request with the same id is a different one.
        self.masked.iter_mut().for_each(|masked| drop(masked.request.take_if(|sent| *sent == request)));
        if self.requests.len() >= REQUEST_COUNT_MAX {
            return Err(Status::AER_LIMIT_EXCEEDED);
        }
        self.requests.push(request);
        Ok(())
    }

    /// Removes the waiting request that `is_it` matches, to abort it; `None` if there is none.
    pub fn abort(&mut self, is_it: impl FnMut(&T) -> bool) -> Option<T> {
        let at = self.requests.iter().position(is_it)?;
        Some(self.requests.remove(at))
    }

    /// The host has completed the request that `is_it` matches by itself: a completion no longer reaches it. Returns
    /// the request if it waits; an event that was reported with it waits for another request, unless the host does not
    /// want it any more.
    pub fn take_back(&mut self, mut is_it: impl FnMut(&T) -> bool) -> Option<T> {
        if let Some(request) = self.abort(&mut is_it) {
            return Some(request);
        }
        let was_sent = |masked: &Masked<T>| masked.request.as_ref().is_some_and(&mut is_it);
        if let Some(at) = self.masked.iter().position(was_sent) {
            let Masked { event, log, .. } = self.masked.remove(at);
            if is_enabled(self.enabled, event) {
                self.pending.insert(0, Pending { event, is_in_log: log == LogOfMasked::Taken });
            }
        }
        None
    }

    /// Sets the events that the host wants (feature 0x0B). Others that wait are dropped.
    pub fn enable(&mut self, events: AsyncEvents) {
        self.enabled = events;
        self.pending.retain(|pending| is_enabled(events, pending.event));
        let unwanted = self.masked.iter_mut().filter(|masked| !is_enabled(events, masked.event));
        for masked in unwanted.filter(|masked| masked.log == LogOfMasked::Outdated) {
            masked.log = LogOfMasked::Taken;
        }
    }

    /// The events that the host wants.
    #[must_use]
    pub fn enabled(&self) -> AsyncEvents {
        self.enabled
    }

    /// Raises an event. It is reported once, and again only after the host has read its log.
    pub fn raise(&mut self, event: AsyncEvent) {
        if !is_enabled(self.enabled, event) {
            return;
        }
        if let Some(pending) = self.pending.iter_mut().find(|pending| pending.event == event) {
            pending.is_in_log = false;
        } else if let Some(masked) = self.masked.iter_mut().find(|masked| masked.event == event) {
            if masked.log == LogOfMasked::Taken {
                masked.log = LogOfMasked::Outdated;
            }
        } else {
            self.pending.push(Pending { event, is_in_log: false });
        }
    }

    /// The host reads a log from offset 0: the log covers all events so far that refer to it.
    pub fn on_log_taken(&mut self, log: Lid) {
        self.pending
            .iter_mut()
            .filter(|pending| pending.event.log() == log)
            .for_each(|pending| pending.is_in_log = true);
        self.masked
            .iter_mut()
            .filter(|masked| masked.event.log() == log)
            .for_each(|masked| masked.log = LogOfMasked::Taken);
    }

    /// The host has read a part of a log without RAE: the events that the log covers are cleared.
    pub fn on_log_read(&mut self, log: Lid) {
        self.pending.retain(|pending| pending.event.log() != log || !pending.is_in_log);
        let pending = &mut self.pending;
        self.masked.retain(|masked| {
            if masked.event.log() != log || masked.log == LogOfMasked::NotTaken {
                return true;
            }
            if masked.log == LogOfMasked::Outdated {
                pending.push(Pending { event: masked.event, is_in_log: false });
            }
            false
        });
    }

    /// The next request to complete, and its event.
    pub fn next_completion(&mut self) -> Option<(T, AsyncEvent)> {
        if self.requests.is_empty() || self.pending.is_empty() {
            return None;
        }
        let Pending { event, is_in_log } = self.pending.remove(0);
        let request = self.requests.remove(0);
        let log = if is_in_log { LogOfMasked::Taken } else { LogOfMasked::NotTaken };
        self.masked.push(Masked { event, request: Some(request.clone()), log });
        Some((request, event))
    }

    /// Resets the controller's events. Returns the waiting requests, which are completed or end with their queue.
    pub fn reset(&mut self) -> Vec<T> {
        std::mem::take(self).requests
    }
}

fn is_enabled(enabled: AsyncEvents, event: AsyncEvent) -> bool {
    let needed = match (event.kind(), event.log()) {
        (AsyncEventType::NOTICE, Lid::CHANGED_NAMESPACES) => AsyncEvents::NAMESPACE_ATTRIBUTE,
        (AsyncEventType::NOTICE, Lid::FIRMWARE_SLOTS) => AsyncEvents::FIRMWARE,
        (AsyncEventType::NOTICE, Lid::ANA) => AsyncEvents::ANA,
        (AsyncEventType::NOTICE, Lid::DISCOVERY) => AsyncEvents::DISCOVERY,
        // The log numbers warnings differently from events: spare space is bit 0 there.
        (AsyncEventType::SMART, _) => match event {
            AsyncEvent::SMART_SPARE => AsyncEvents::from_bits_retain(0b001),
            AsyncEvent::SMART_TEMPERATURE => AsyncEvents::from_bits_retain(0b010),
            AsyncEvent::SMART_RELIABILITY => AsyncEvents::from_bits_retain(0b100),
            _ => AsyncEvents::SMART,
        },
        // Errors and command set events cannot be switched off here.
        _ => AsyncEvents::empty(),
    };
    enabled.contains(needed)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn queue() -> AsyncEventQueue<u16> {
        let mut queue = AsyncEventQueue::default();
        queue.enable(AsyncEvents::NAMESPACE_ATTRIBUTE | AsyncEvents::DISCOVERY);
        queue
    }

    /// Reads a whole log without RAE.
    fn read(queue: &mut AsyncEventQueue<u16>, log: Lid) {
        queue.on_log_taken(log);
        queue.on_log_read(log);
    }

    #[test]
    fn an_event_waits_for_a_request_and_is_told_once() {
        let mut queue = queue();
        queue.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        queue.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        assert_eq!(queue.next_completion(), None);
        queue.on_request(1).unwrap();
        queue.on_request(2).unwrap();
        assert_eq!(queue.next_completion(), Some((1, AsyncEvent::NAMESPACE_ATTRIBUTE)));
        queue.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        assert_eq!(queue.next_completion(), None, "masked until its log is read");
    }

    #[test]
    fn reading_the_log_arms_the_event_again_unless_it_retains() {
        let mut queue = queue();
        queue.on_request(1).unwrap();
        queue.raise(AsyncEvent::DISCOVERY_CHANGE);
        queue.next_completion().unwrap();
        queue.on_request(2).unwrap();
        queue.on_log_taken(Lid::DISCOVERY);
        queue.raise(AsyncEvent::DISCOVERY_CHANGE);
        assert_eq!(queue.next_completion(), None);
        read(&mut queue, Lid::DISCOVERY);
        queue.raise(AsyncEvent::DISCOVERY_CHANGE);
        assert_eq!(queue.next_completion(), Some((2, AsyncEvent::DISCOVERY_CHANGE)));
    }

    #[test]
    fn an_event_between_two_parts_of_its_log_is_not_cleared_by_the_later_part() {
        let mut queue = queue();
        queue.on_log_taken(Lid::DISCOVERY);
        queue.raise(AsyncEvent::DISCOVERY_CHANGE);
        queue.on_log_read(Lid::DISCOVERY);
        queue.on_request(1).unwrap();
        assert_eq!(queue.next_completion(), Some((1, AsyncEvent::DISCOVERY_CHANGE)));
        // While it is masked, it is sent again once the older log is read to its end.
        queue.on_request(2).unwrap();
        queue.on_log_taken(Lid::DISCOVERY);
        queue.raise(AsyncEvent::DISCOVERY_CHANGE);
        assert_eq!(queue.next_completion(), None, "the host reads the log just now");
        queue.on_log_read(Lid::DISCOVERY);
        assert_eq!(queue.next_completion(), Some((2, AsyncEvent::DISCOVERY_CHANGE)));
    }

    #[test]
    fn an_event_that_is_no_longer_wanted_does_not_come_back_with_its_request() {
        let mut queue = queue();
        queue.on_request(1).unwrap();
        queue.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        queue.next_completion().unwrap();
        queue.enable(AsyncEvents::DISCOVERY);
        assert_eq!(queue.take_back(|request| *request == 1), None);
        queue.on_request(1).unwrap();
        assert_eq!(queue.next_completion(), None);
    }

    #[test]
    fn what_the_log_has_told_is_not_told_again() {
        let mut queue = queue();
        queue.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        queue.raise(AsyncEvent::DISCOVERY_CHANGE);
        read(&mut queue, Lid::DISCOVERY);
        queue.on_request(1).unwrap();
        queue.on_request(2).unwrap();
        assert_eq!(queue.next_completion(), Some((1, AsyncEvent::NAMESPACE_ATTRIBUTE)));
        assert_eq!(queue.next_completion(), None);
        queue.raise(AsyncEvent::DISCOVERY_CHANGE);
        assert_eq!(queue.next_completion(), Some((2, AsyncEvent::DISCOVERY_CHANGE)));
    }

    #[test]
    fn a_request_that_its_host_has_completed_is_taken_back() {
        let mut queue = queue();
        queue.on_request(1).unwrap();
        queue.on_request(2).unwrap();
        assert_eq!(queue.take_back(|request| *request == 1), Some(1));
        assert_eq!(queue.take_back(|request| *request == 1), None);
        queue.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        assert_eq!(queue.next_completion(), Some((2, AsyncEvent::NAMESPACE_ATTRIBUTE)));
    }

    #[test]
    fn an_event_that_was_told_with_a_request_taken_back_is_told_with_the_next() {
        let mut queue = queue();
        queue.on_request(1).unwrap();
        queue.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        assert_eq!(queue.next_completion(), Some((1, AsyncEvent::NAMESPACE_ATTRIBUTE)));
        assert_eq!(queue.take_back(|request| *request == 1), None);
        assert_eq!(queue.next_completion(), None, "there is no other request");
        queue.on_request(1).unwrap();
        assert_eq!(queue.next_completion(), Some((1, AsyncEvent::NAMESPACE_ATTRIBUTE)));
        // The host has read the log meanwhile: no second report.
        read(&mut queue, Lid::CHANGED_NAMESPACES);
        assert_eq!(queue.take_back(|request| *request == 1), None);
        queue.on_request(1).unwrap();
        assert_eq!(queue.next_completion(), None);
    }

    #[test]
    fn an_event_that_an_older_request_of_the_same_name_has_told_is_not_told_again() {
        let mut queue = queue();
        queue.on_request(1).unwrap();
        queue.raise(AsyncEvent::NAMESPACE_ATTRIBUTE);
        assert!(queue.next_completion().is_some());
        queue.on_request(1).unwrap();
        assert_eq!(queue.take_back(|request| *request == 1), Some(1));
        queue.on_request(2).unwrap();
        assert_eq!(queue.next_completion(), None);
    }

    #[test]
    fn events_that_are_not_wanted_are_not_kept() {
        let mut queue = queue();
        queue.on_request(1).unwrap();
        queue.raise(AsyncEvent::ANA_CHANGE);
        queue.enable(AsyncEvents::ANA);
        assert_eq!(queue.next_completion(), None);
        queue.raise(AsyncEvent::SMART_TEMPERATURE);
        assert_eq!(queue.next_completion(), None);
        queue.enable(AsyncEvents::SMART);
        queue.raise(AsyncEvent::SMART_TEMPERATURE);
        assert!(queue.next_completion().is_some());
    }

    #[test]
    fn each_health_event_is_enabled_by_its_warning() {
        // Bits of the critical warning: spare space, temperature, reliability.
        let events = [AsyncEvent::SMART_SPARE, AsyncEvent::SMART_TEMPERATURE, AsyncEvent::SMART_RELIABILITY];
        for (bit, enabled) in events.into_iter().enumerate() {
            let mut queue = AsyncEventQueue::default();
            queue.enable(AsyncEvents::from_bits_retain(1 << bit));
            queue.on_request(1).unwrap();
            events.into_iter().filter(|event| *event != enabled).for_each(|event| queue.raise(event));
            assert_eq!(queue.next_completion(), None);
            queue.raise(enabled);
            assert_eq!(queue.next_completion(), Some((1, enabled)));
        }
    }

    #[test]
    fn a_health_event_without_a_warning_of_its_own_needs_all_of_them() {
        let other = AsyncEvent::new(AsyncEventType::SMART, 9, Lid::SMART);
        for (enabled, is_told) in [(0x7F, false), (0xFF, true)] {
            let mut queue = AsyncEventQueue::default();
            queue.enable(AsyncEvents::from_bits_retain(enabled));
            queue.on_request(1).unwrap();
            queue.raise(other);
            queue.raise(AsyncEvent::FIRMWARE);
            assert_eq!(queue.next_completion(), is_told.then_some((1, other)));
        }
    }

    #[test]
    fn too_many_requests_are_refused_and_one_can_be_aborted() {
        let mut queue = queue();
        for request in 0..4 {
            queue.on_request(request).unwrap();
        }
        assert_eq!(queue.on_request(4), Err(Status::AER_LIMIT_EXCEEDED));
        assert_eq!(queue.abort(|request| *request == 2), Some(2));
        assert_eq!(queue.abort(|request| *request == 2), None);
        queue.on_request(4).unwrap();
        assert_eq!(queue.reset(), [0, 1, 3, 4]);
        assert_eq!(queue.enabled(), AsyncEvents::empty());
    }
}
