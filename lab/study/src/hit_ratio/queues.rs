//! Queues of keys, from the oldest to the newest: the parts of every simulated policy.

/// Marks the end of a queue, and a key that is in none.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy)]
struct Node {
    older: u32,
    newer: u32,
    bytes: u32,
    /// Number of the queue, or `NONE`.
    queue: u32,
}

#[derive(Clone, Copy)]
struct Ends {
    oldest: u32,
    newest: u32,
    bytes: u64,
}

/// `COUNT` queues; a key is in one of them, or in none.
pub(super) struct Queues<const COUNT: usize> {
    nodes: Vec<Node>,
    queues: [Ends; COUNT],
}

impl<const COUNT: usize> Queues<COUNT> {
    /// Empty queues for keys below `key_count`.
    pub(super) fn new(key_count: u32) -> Self {
        let node = Node { older: NONE, newer: NONE, bytes: 0, queue: NONE };
        let ends = Ends { oldest: NONE, newest: NONE, bytes: 0 };
        Self { nodes: vec![node; key_count as usize], queues: [ends; COUNT] }
    }

    /// The queue that a key is in.
    pub(super) fn queue_of(&self, key: u32) -> Option<usize> {
        let queue = self.nodes[key as usize].queue;
        (queue != NONE).then_some(queue as usize)
    }

    /// Bytes of all keys of a queue.
    pub(super) fn bytes(&self, queue: usize) -> u64 {
        self.queues[queue].bytes
    }

    /// Bytes of a key that is in a queue.
    pub(super) fn bytes_of(&self, key: u32) -> u32 {
        self.nodes[key as usize].bytes
    }

    /// The oldest key of a queue.
    pub(super) fn oldest(&self, queue: usize) -> Option<u32> {
        Self::some(self.queues[queue].oldest)
    }

    /// The key that came to its queue after this one.
    pub(super) fn newer(&self, key: u32) -> Option<u32> {
        Self::some(self.nodes[key as usize].newer)
    }

    fn some(key: u32) -> Option<u32> {
        (key != NONE).then_some(key)
    }

    /// Adds a key of no queue as the newest of one.
    pub(super) fn push(&mut self, queue: usize, key: u32, bytes: u32) {
        let newest = std::mem::replace(&mut self.queues[queue].newest, key);
        let number = u32::try_from(queue).expect("a few queues");
        self.nodes[key as usize] = Node { older: newest, newer: NONE, bytes, queue: number };
        match newest {
            NONE => self.queues[queue].oldest = key,
            _ => self.nodes[newest as usize].newer = key,
        }
        self.queues[queue].bytes += u64::from(bytes);
    }

    /// Takes a key out of its queue.
    pub(super) fn remove(&mut self, key: u32) {
        let Node { older, newer, bytes, queue } = self.nodes[key as usize];
        let ends = &mut self.queues[queue as usize];
        ends.bytes -= u64::from(bytes);
        match older {
            NONE => ends.oldest = newer,
            _ => self.nodes[older as usize].newer = newer,
        }
        match newer {
            NONE => self.queues[queue as usize].newest = older,
            _ => self.nodes[newer as usize].older = older,
        }
        self.nodes[key as usize].queue = NONE;
    }

    /// Makes a key the newest of a queue.
    pub(super) fn move_to(&mut self, queue: usize, key: u32) {
        self.remove(key);
        self.push(queue, key, self.bytes_of(key));
    }
}
