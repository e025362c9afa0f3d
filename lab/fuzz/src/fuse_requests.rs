//! What comes from `/dev/fuse`: no request panics, each reply says its own length, and whatever is let through lies in its file.

use bridge::fuse::{
    Directory, FileInfo, FileSettings, Init, Listing, Operation, REPLY_BYTES_MAX, Reply, Request, Task, Turn,
};

use crate::input::Input;

fn files() -> Vec<FileInfo> {
    let file = |node: u64, name: &str, block_bytes: u32, is_read_only: bool, is_present: bool| FileInfo {
        node,
        name: name.into(),
        size_bytes: 1 << 20,
        block_bytes,
        is_read_only,
        can_zero: true,
        is_present,
    };
    vec![
        file(2, "ns1", 4096, false, true),
        file(3, "ns2", 512, false, true),
        file(4, "ns3", 512, true, true),
        file(5, "ns4", 512, false, false),
    ]
}

/// Input: requests, each behind its length (a word) and the number of its bytes that are there (a byte, times four, or all).
pub fn fuse_requests(data: &[u8]) {
    let files = files();
    let directory = Directory::new(FileSettings { uid: 0, gid: 0, mode: 0o600 }, files.clone());
    let mut listing = Listing::default();
    let mut input = Input::new(data);
    while !input.is_empty() {
        let length = usize::from(input.word());
        let there = match input.byte() {
            u8::MAX => length,
            count => length.min(usize::from(count) * 4),
        };
        let bytes = input.bytes(there);
        let Ok(request) = Request::from_bytes(bytes, length) else { continue };
        assert_eq!(Request::unique_of(bytes), Some(request.unique));
        if let Operation::Init { major, minor, max_readahead, flags } = request.operation
            && let Ok(init) = Init::answer(request.unique, (major, minor), max_readahead, flags, 1 << 20)
        {
            check_reply(&request, &init.reply, 0);
        }
        match directory.judge(&request, &mut listing) {
            Turn::Reply(reply) => check_reply(&request, &reply, 0),
            Turn::Listing => {
                let Operation::ReadDirectory { length, .. } = request.operation else {
                    panic!("{request:?}")
                };
                assert!(listing.as_bytes().len() <= length as usize);
            }
            Turn::Nothing => assert_eq!(request.operation, Operation::Forget),
            Turn::Task(task) => check_task(&request, task, &files),
        }
    }
}

fn check_reply(request: &Request<'_>, reply: &Reply, data_bytes: usize) {
    let bytes = reply.as_bytes();
    assert!(bytes.len() <= REPLY_BYTES_MAX);
    let length = u32::from_ne_bytes(bytes[..4].try_into().expect("four"));
    assert_eq!(length as usize, bytes.len() + data_bytes, "{request:?}");
    assert_eq!(bytes[8..16], request.unique.to_ne_bytes());
}

fn check_task(request: &Request<'_>, task: Task, files: &[FileInfo]) {
    let (file, offset, length, changes) = match task {
        Task::Read { file, offset, length } => {
            check_reply(request, &Reply::data(request.unique, length), length as usize);
            (file, offset, u64::from(length), false)
        }
        Task::Write { file, offset, length } => (file, offset, u64::from(length), true),
        Task::Zero { file, offset, length, .. } => {
            let block_bytes = u64::from(files[file].block_bytes);
            assert!(offset.is_multiple_of(block_bytes) && length.is_multiple_of(block_bytes));
            (file, offset, length, true)
        }
        Task::Open { file, .. } | Task::Flush { file, .. } => (file, 0, 1, false),
        Task::Release { .. } => return,
    };
    let info = &files[file];
    assert!(info.node == request.node && info.is_present, "{request:?}");
    assert!(length > 0 && offset.checked_add(length).is_some_and(|end| end <= info.size_bytes), "{task:?}");
    assert!(!(changes && info.is_read_only), "{task:?}");
}
