//! What is made when it is first needed, and kept.

/// One thing for each key.
#[derive(Debug)]
pub(crate) struct Kept<Key, Thing>(Vec<(Key, Thing)>);

impl<Key, Thing> Default for Kept<Key, Thing> {
    fn default() -> Self {
        Self(Vec::new())
    }
}

impl<Key: PartialEq, Thing> Kept<Key, Thing> {
    /// The thing of this key; makes it if it is not there yet.
    ///
    /// # Errors
    /// Those of `make`.
    pub(crate) fn get<Error>(
        &mut self,
        key: Key,
        make: impl FnOnce() -> Result<Thing, Error>,
    ) -> Result<&mut Thing, Error> {
        let at = match self.0.iter().position(|(known, _)| *known == key) {
            Some(at) => at,
            None => {
                self.0.push((key, make()?));
                self.0.len() - 1
            }
        };
        Ok(&mut self.0[at].1)
    }
}
