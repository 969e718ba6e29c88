//! Arenas, and the types of the keys by which their values are found.

use std::marker::PhantomData;
use std::ops::{Index, IndexMut};

use slab::Slab;

/// Key of a value in an [`Arena`]. A key may be used again after its value was removed.
pub(crate) trait ArenaKey: Copy {
    /// Returns the key with this index, which is below 2^32.
    fn at(index: usize) -> Self;
    fn index(self) -> usize;
}

macro_rules! arena_keys {
    ($($(#[$doc:meta])* $name:ident;)*) => {
        $(
            $(#[$doc])*
            #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
            pub(crate) struct $name(u32);

            impl ArenaKey for $name {
                fn at(index: usize) -> Self {
                    Self(index as u32)
                }

                fn index(self) -> usize {
                    self.0 as usize
                }
            }
        )*
    };
}

arena_keys! {
    EngineKey;
    ControllerKey;
    /// Key of an open namespace in its controller.
    NamespaceKey;
    QueueKey;
    RangeKey;
    /// Key of a run of a plan in its engine.
    RunKey;
    RingKey;
    PlanKey;
    /// Key of a namespace in the host's table of writes.
    WrittenNamespace;
}

impl RingKey {
    /// Key of no ring, which handles in a forked child have.
    pub(crate) const NONE: Self = Self(u32::MAX);
}

/// Values with keys of one type, which are assigned when values are added.
#[derive(Debug)]
pub(crate) struct Arena<K, V> {
    values: Slab<V>,
    keys: PhantomData<K>,
}

impl<K, V> Default for Arena<K, V> {
    fn default() -> Self {
        Self { values: Slab::new(), keys: PhantomData }
    }
}

impl<K: ArenaKey, V> Arena<K, V> {
    pub(crate) fn next_key(&self) -> K {
        K::at(self.values.vacant_key())
    }

    pub(crate) fn insert(&mut self, value: V) -> K {
        K::at(self.values.insert(value))
    }

    /// Removes and returns a value.
    ///
    /// # Panics
    /// There is no value with this key.
    pub(crate) fn remove(&mut self, key: K) -> V {
        self.values.remove(key.index())
    }

    pub(crate) fn get(&self, key: K) -> Option<&V> {
        self.values.get(key.index())
    }

    pub(crate) fn get_mut(&mut self, key: K) -> Option<&mut V> {
        self.values.get_mut(key.index())
    }

    pub(crate) fn contains(&self, key: K) -> bool {
        self.values.contains(key.index())
    }

    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.values.is_empty()
    }

    /// Removes the values for which `keep` returns false.
    pub(crate) fn retain(&mut self, mut keep: impl FnMut(K, &mut V) -> bool) {
        self.values.retain(|index, value| keep(K::at(index), value));
    }

    /// Returns the keys and values, in ascending order of the keys.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (K, &V)> + Clone {
        self.values.iter().map(|(index, value)| (K::at(index), value))
    }

    pub(crate) fn iter_mut(&mut self) -> impl Iterator<Item = (K, &mut V)> {
        self.values.iter_mut().map(|(index, value)| (K::at(index), value))
    }

    /// Returns the keys in ascending order.
    pub(crate) fn keys(&self) -> impl Iterator<Item = K> {
        self.iter().map(|(key, _)| key)
    }

    pub(crate) fn values(&self) -> impl Iterator<Item = &V> {
        self.iter().map(|(_, value)| value)
    }

    pub(crate) fn values_mut(&mut self) -> impl Iterator<Item = &mut V> {
        self.iter_mut().map(|(_, value)| value)
    }
}

impl<K: ArenaKey, V> Index<K> for Arena<K, V> {
    type Output = V;

    fn index(&self, key: K) -> &V {
        &self.values[key.index()]
    }
}

impl<K: ArenaKey, V> IndexMut<K> for Arena<K, V> {
    fn index_mut(&mut self, key: K) -> &mut V {
        &mut self.values[key.index()]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_is_that_of_the_value_until_it_is_removed() {
        let mut arena = Arena::<RangeKey, &str>::default();
        let [one, two] = ["one", "two"].map(|value| arena.insert(value));
        assert_eq!((arena[one], arena.get(two)), ("one", Some(&"two")));
        assert_eq!(arena.remove(one), "one");
        assert!(!arena.contains(one) && arena.next_key() == one);
        assert_eq!(arena.keys().collect::<Vec<_>>(), [two]);
        arena.retain(|key, _| key != two);
        assert!(arena.is_empty());
    }
}
