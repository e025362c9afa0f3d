//! Structures as lists of their fields, for tools that show them raw.

/// A field of a structure, by the name the reference has for it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Field {
    /// Its name.
    pub name: &'static str,
    /// Its offset, bytes from the start.
    pub offset: usize,
    /// Its length, bytes.
    pub length: usize,
}

impl Field {
    /// Its bytes; `None` if the structure was cut before its end.
    #[must_use]
    pub fn bytes<'a>(&self, structure: &'a [u8]) -> Option<&'a [u8]> {
        structure.get(self.offset..)?.get(..self.length)
    }

    /// Its bytes as one little-endian number; `None` if they are cut, or more than 16.
    #[must_use]
    pub fn number(&self, structure: &[u8]) -> Option<u128> {
        let bytes = self.bytes(structure)?;
        let mut wide = [0; 16];
        wide.get_mut(..bytes.len())?.copy_from_slice(bytes);
        Some(u128::from_le_bytes(wide))
    }
}

/// Size of the field that an accessor returns, where its type cannot be named.
pub(crate) const fn length_of<S, T>(_: fn(&S) -> &T) -> usize {
    size_of::<T>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_field_is_read_where_it_lies() {
        let field = Field { name: "x", offset: 1, length: 2 };
        assert_eq!(field.bytes(&[1, 2, 3, 4]), Some(&[2, 3][..]));
        assert_eq!(field.number(&[1, 2, 3, 4]), Some(0x0302));
        assert_eq!(field.number(&[1, 2]), None);
        assert_eq!(Field { name: "y", offset: 0, length: 17 }.number(&[0; 17]), None);
        assert_eq!(length_of(|pair: &(u8, [u16; 3])| &pair.1), 6);
        assert_eq!(Field { name: "z", offset: usize::MAX, length: 2 }.bytes(&[0; 17]), None);
    }
}
