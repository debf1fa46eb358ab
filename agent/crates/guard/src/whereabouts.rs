//! Which interface a place stands for now. A tenant can rename, move and imitate its interface, so a name proves nothing while
//! the interface itself exists. Pure; `place` asks the kernel.

/// The interface that had the hook at the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Own {
    /// It is in the namespace of the place, with this number.
    Here(u32),
    /// It exists, in another namespace.
    Away,
    /// It does not exist, or the file of the place stands for another namespace now.
    Gone,
}

/// Where the interface of a place is, compared with the last check.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Where {
    /// Where it was, with the name of the policy.
    Same,
    /// Where it was, with another name.
    Renamed,
    /// Where it was, with another name, and this other interface has the name of the policy.
    Imitated(u32),
    /// It left its namespace, and took neither hook nor queue along.
    Away,
    /// Back in its namespace, or created again, with this number.
    Replaced(u32),
    /// Nothing has its number or its name.
    Gone,
}

/// `last`: the number at the last check. `named`: the interface that has the name of the policy.
pub(crate) fn whereabouts(last: u32, own: Own, named: Option<u32>) -> Where {
    match (own, named) {
        (Own::Here(own), _) if own != last => Where::Replaced(own),
        (Own::Here(own), Some(named)) if own == named => Where::Same,
        (Own::Here(_), Some(other)) => Where::Imitated(other),
        (Own::Here(_), None) => Where::Renamed,
        (Own::Away, _) => Where::Away,
        (Own::Gone, Some(named)) => Where::Replaced(named),
        (Own::Gone, None) => Where::Gone,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interface_is_followed_by_its_number_while_it_exists() {
        assert_eq!(whereabouts(5, Own::Here(5), Some(5)), Where::Same);
        assert_eq!(whereabouts(5, Own::Here(5), None), Where::Renamed);
        assert_eq!(whereabouts(5, Own::Here(5), Some(9)), Where::Imitated(9));
        assert_eq!(whereabouts(5, Own::Here(7), Some(9)), Where::Replaced(7), "it left, and came back with another number");
    }

    #[test]
    fn a_decoy_does_not_stand_in_for_an_interface_that_hides_in_another_namespace() {
        assert_eq!(whereabouts(5, Own::Away, Some(9)), Where::Away);
        assert_eq!(whereabouts(5, Own::Away, None), Where::Away);
    }

    #[test]
    fn an_interface_that_is_gone_is_followed_by_its_name() {
        assert_eq!(whereabouts(5, Own::Gone, Some(9)), Where::Replaced(9));
        assert_eq!(whereabouts(5, Own::Gone, Some(5)), Where::Replaced(5), "in another namespace, by chance with the same number");
        assert_eq!(whereabouts(5, Own::Gone, None), Where::Gone);
    }
}
