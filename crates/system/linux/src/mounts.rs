//! What is mounted: `/proc/self/mountinfo`.

use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::PathBuf;

/// A mount.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mount {
    /// The part of its file system that is mounted: `/`, or a directory or file for a bind mount.
    pub root: PathBuf,
    /// Where it is.
    pub at: PathBuf,
    /// The type of its file system.
    pub file_system: String,
    /// The mounted device, such as `/dev/nvme0n1`.
    pub source: PathBuf,
    /// Nothing can be written by it.
    pub is_read_only: bool,
}

/// The mounts in the text of the kernel, in their order.
#[must_use]
pub fn parse(text: &[u8]) -> Vec<Mount> {
    text.split(|byte| *byte == b'\n').filter_map(line).collect()
}

/// `36 35 98:0 /mnt1 /mnt2 rw,noatime master:1 - ext3 /dev/root rw,errors=continue`
fn line(line: &[u8]) -> Option<Mount> {
    let mut words = line.split(|byte| *byte == b' ');
    let root = unescaped(words.nth(3)?);
    let at = unescaped(words.next()?);
    let options = words.next()?;
    let mut behind = words.skip_while(|word| *word != b"-").skip(1);
    let file_system = String::from_utf8_lossy(behind.next()?).into_owned();
    let source = unescaped(behind.next()?);
    let is_read_only = options.split(|byte| *byte == b',').any(|option| option == b"ro");
    Some(Mount { root, at, file_system, source, is_read_only })
}

/// A path with spaces and the like as `\040`.
fn unescaped(text: &[u8]) -> PathBuf {
    let mut bytes = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((&first, behind)) = rest.split_first() {
        let digits =
            behind.get(..3).filter(|digits| digits.iter().all(|digit| (b'0'..=b'7').contains(digit)));
        let number = digits
            .map(|digits| digits.iter().fold(0u32, |number, digit| number * 8 + u32::from(digit - b'0')));
        match number.and_then(|number| u8::try_from(number).ok()).filter(|_| first == b'\\') {
            Some(byte) => {
                bytes.push(byte);
                rest = &behind[3..];
            }
            None => {
                bytes.push(first);
                rest = behind;
            }
        }
    }
    OsString::from_vec(bytes).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::Path;

    #[test]
    fn lines_of_the_kernel_are_read_and_others_are_left_out() {
        let text = b"22 1 254:0 / / rw,relatime shared:1 - ext4 /dev/vda rw\n\
            90 22 259:1 / /var/lib/a\\040b\\134 ro,nosuid - xfs /dev/nvme0n1 rw,attr2\n\
            91 22 0:5 /nvme1n1 /pods/1 rw master:2 propagate_from:3 - devtmpfs udev rw\nshort line\n\n";
        let mounts = parse(text);
        assert_eq!(mounts.len(), 3);
        assert_eq!((mounts[0].at.as_path(), mounts[0].is_read_only), (Path::new("/"), false));
        assert_eq!((mounts[1].at.as_path(), mounts[1].is_read_only), (Path::new("/var/lib/a b\\"), true));
        assert_eq!(
            (mounts[2].file_system.as_str(), mounts[2].root.as_path()),
            ("devtmpfs", Path::new("/nvme1n1"))
        );
        assert!(!parse(&std::fs::read("/proc/self/mountinfo").expect("Linux has it")).is_empty());
    }
}
