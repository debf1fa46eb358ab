//! Divides the capacities of several links among claims that also share totals: the ceilings of a tenant, or of a vif with flow classes.

use crate::{allocate, Claim};

/// A sum that the grants of some claims never exceed: the capacity of a link, or a total.
#[derive(Clone, Copy, Debug)]
pub struct Limit<'a> {
    /// The sum.
    pub most: u64,
    /// Indexes of its claims.
    pub members: &'a [usize],
}

/// Maximum number of divisions in which the unused part of a total moves to another link. Each result keeps all limits, so that the
/// last one is valid in any case.
const PASSES: usize = 8;

/// The grants, in the order of `claims`. Each claim has one of `links`. A total lowers the ceilings of its claims first, so that their
/// sum stays below it; of two totals with common claims, the smaller must come first.
///
/// A link may grant a claim less than its part of a total. If the total has claims on several links, those on the other links then
/// get the rest. On a single link nothing is lost: it grants less only if all of its capacity is granted.
#[must_use]
pub fn divide(claims: &[Claim], links: &[Limit], totals: &[Limit]) -> Vec<u64> {
    let across = across(claims.len(), links, totals);
    let mut own = claims.to_vec();
    let mut grants = vec![0; claims.len()];
    for _ in 0..PASSES {
        let mut parts = own.clone();
        for total in totals {
            cap(total, &mut parts);
        }
        for link in links {
            share_out(link, &parts, &mut grants);
        }
        let left: Vec<usize> = across.iter().copied().filter(|&at| grants[at] < parts[at].ceiling).collect();
        if left.is_empty() {
            break;
        }
        for at in left {
            own[at].ceiling = grants[at];
        }
    }
    grants
}

/// Claims whose total has claims on several links.
fn across(claims: usize, links: &[Limit], totals: &[Limit]) -> Vec<usize> {
    if totals.is_empty() {
        return Vec::new();
    }
    let mut link_of = vec![0; claims];
    for (number, link) in links.iter().enumerate() {
        link.members.iter().for_each(|&at| link_of[at] = number);
    }
    let spans = |total: &&Limit| total.members.windows(2).any(|pair| link_of[pair[0]] != link_of[pair[1]]);
    totals.iter().filter(spans).flat_map(|total| total.members.iter().copied()).collect()
}

/// Lowers the ceilings of a total's claims so that their sum stays below the total.
fn cap(total: &Limit, claims: &mut [Claim]) {
    let own: Vec<Claim> = total.members.iter().map(|&at| claims[at]).collect();
    for (&at, part) in total.members.iter().zip(allocate(total.most, &own)) {
        claims[at].ceiling = part;
    }
}

fn share_out(link: &Limit, claims: &[Claim], grants: &mut [u64]) {
    let of_link: Vec<Claim> = link.members.iter().map(|&at| claims[at]).collect();
    for (&at, grant) in link.members.iter().zip(allocate(link.most, &of_link)) {
        grants[at] = grant;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn greedy(guarantee: u64, ceiling: u64) -> Claim {
        Claim { priority: 1, guarantee, ceiling, demand: 1000, draining: 0, could_use: u64::MAX }
    }

    #[test]
    fn what_a_full_link_leaves_of_a_total_goes_to_the_other_link() {
        // The first two are one tenant's, one on each link. The third is promised most of the first link.
        let claims = [greedy(0, 100), greedy(0, 400), greedy(80, 100)];
        let links = [Limit { most: 100, members: &[0, 2] }, Limit { most: 400, members: &[1] }];
        assert_eq!(divide(&claims, &links, &[Limit { most: 120, members: &[0, 1] }]), [20, 100, 80]);
        assert_eq!(divide(&claims, &links, &[]), [20, 400, 80]);
    }

    #[test]
    fn a_guarantee_below_a_total_is_kept_on_each_link() {
        let claims = [greedy(30, 100), greedy(90, 400), greedy(0, 400)];
        let links = [Limit { most: 100, members: &[0] }, Limit { most: 400, members: &[1, 2] }];
        assert_eq!(divide(&claims, &links, &[Limit { most: 120, members: &[0, 1] }]), [30, 90, 310]);
    }

    #[test]
    fn a_total_on_one_link_lends_to_its_own_claims_by_priority() {
        let claims = [Claim { priority: 2, ..greedy(0, 1000) }, greedy(0, 1000), greedy(0, 1000)];
        let links = [Limit { most: 1000, members: &[0, 1, 2] }];
        assert_eq!(divide(&claims, &links, &[Limit { most: 300, members: &[0, 1] }]), [300, 0, 700]);
    }

    /// Claims, the link of each, whether each is in the total of its tenant, capacities, and the total.
    #[derive(Clone, Debug)]
    struct Case {
        claims: Vec<Claim>,
        links: Vec<Vec<usize>>,
        capacities: Vec<u64>,
        member: Vec<Vec<usize>>,
        totals: Vec<u64>,
    }

    impl Case {
        fn limits<'a>(most: &[u64], members: &'a [Vec<usize>]) -> Vec<Limit<'a>> {
            most.iter().zip(members).map(|(&most, members)| Limit { most, members }).collect()
        }

        fn divided(&self) -> Vec<u64> {
            divide(&self.claims, &Self::limits(&self.capacities, &self.links), &Self::limits(&self.totals, &self.member))
        }
    }

    fn sum(of: &[usize], grants: &[u64]) -> u64 {
        of.iter().map(|&at| grants[at]).sum()
    }

    fn cases() -> impl Strategy<Value = Case> {
        let claim = (0u32..3, 0u64..300, 0u64..2000, 0u64..3000, 0u64..1000, 0u64..2000);
        let claim = claim.prop_map(|(priority, guarantee, ceiling, demand, draining, more)| Claim {
            priority,
            guarantee,
            ceiling,
            demand,
            draining,
            could_use: demand + more,
        });
        let each = proptest::collection::vec((claim, 0usize..3, 0usize..3), 1..12);
        (each, proptest::collection::vec(0u64..4000, 3), proptest::collection::vec(0u64..4000, 2)).prop_map(|(each, capacities, totals)| {
            let of = |which: &dyn Fn(&(Claim, usize, usize)) -> usize, number: usize| -> Vec<usize> {
                (0..each.len()).filter(|&at| which(&each[at]) == number).collect()
            };
            Case {
                claims: each.iter().map(|&(claim, ..)| claim).collect(),
                links: (0..3).map(|link| of(&|&(_, link, _)| link, link)).collect(),
                capacities,
                // The third tenant has no total.
                member: (0..2).map(|tenant| of(&|&(.., tenant)| tenant, tenant)).collect(),
                totals,
            }
        })
    }

    proptest! {
        #[test]
        fn never_above_a_link_a_total_or_a_ceiling(case in cases()) {
            let grants = case.divided();
            prop_assert!(case.links.iter().zip(&case.capacities).all(|(of, &most)| sum(of, &grants) <= most));
            prop_assert!(case.member.iter().zip(&case.totals).all(|(of, &most)| sum(of, &grants) <= most));
            prop_assert!(grants.iter().zip(&case.claims).all(|(&grant, claim)| grant <= claim.ceiling));
        }

        #[test]
        fn no_capacity_is_withheld_while_a_total_and_a_link_have_some(case in cases()) {
            let grants = case.divided();
            let has_room = |at: usize, of: &[Vec<usize>], most: &[u64]| {
                of.iter().zip(most).all(|(of, &most)| !of.contains(&at) || sum(of, &grants) < most)
            };
            for (at, claim) in case.claims.iter().enumerate() {
                let room = has_room(at, &case.links, &case.capacities) && has_room(at, &case.member, &case.totals);
                prop_assert!(grants[at] == claim.ceiling || !room, "claim {at} could have more: {grants:?}");
            }
        }

        #[test]
        fn a_guarantee_with_demand_is_met_whenever_links_and_totals_permit(case in cases()) {
            let wanted: Vec<u64> = case.claims.iter().map(|c| c.demand.min(c.guarantee).min(c.ceiling)).collect();
            let links = case.links.iter().zip(&case.capacities).all(|(of, &most)| sum(of, &wanted) <= most);
            prop_assume!(links && case.member.iter().zip(&case.totals).all(|(of, &most)| sum(of, &wanted) <= most));
            prop_assert!(case.divided().iter().zip(wanted).all(|(&grant, wanted)| grant >= wanted));
        }
    }
}
