//! `float`: the modules of the Whetstone benchmark (Curnow and Wichmann, "A synthetic benchmark", The Computer Journal 19, 1976),
//! rewritten from the description there. They compute with variables, arrays, branches, integers, trigonometric and standard
//! functions and procedure calls, in the weights of the paper. Its modules of weight 0 are omitted. The functions are those of
//! the C library that the agent is linked with, and affect the result.

use std::hint::black_box;

use schemars::{schema_for, JsonSchema};
use serde::Deserialize;

use crate::{Entry, Figure, Kernel, KernelError, KernelInfo, Latency, Needs, Resource, Roles, Settle, Sink, Unit};

/// Takes no parameters.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Params {}

/// Whetstone instructions in the modules at their weights, by the paper's definition.
const WHETSTONES: u32 = 100_000;
/// Repetitions of all modules in a step: some 30 µs.
const SCALE: u32 = 2;

/// The paper's constants. They are arguments, so that the compiler cannot precompute results.
#[derive(Clone, Copy)]
struct Constants {
    t: f64,
    t1: f64,
    t2: f64,
}

const CONSTANTS: Constants = Constants { t: 0.499_975, t1: 0.500_25, t2: 2.0 };

/// Results of the modules, in the paper's order.
#[derive(Debug, PartialEq)]
struct Results {
    array: [f64; 4],
    array_by_reference: [f64; 4],
    branch: i32,
    integers: [i32; 3],
    array_by_integers: [f64; 2],
    trigonometric: [f64; 2],
    procedure: f64,
    references: [f64; 3],
    standard: f64,
}

/// Runs all modules, each `scale` times its weight.
fn modules(scale: u32, constants: Constants) -> Results {
    let array = array_elements(12 * scale, constants);
    let array_by_reference = array_by_reference(14 * scale, array, constants);
    let branch = branches(345 * scale);
    let (integers, array_by_integers) = integer_arithmetic(210 * scale);
    Results {
        array,
        array_by_reference,
        branch,
        integers,
        array_by_integers,
        trigonometric: trigonometric(32 * scale, constants),
        procedure: procedure_calls(899 * scale, constants),
        references: array_references(616 * scale),
        standard: standard_functions(93 * scale, constants),
    }
}

/// Module 2. Each new element is a signed sum of all four, times `t`.
fn array_elements(count: u32, Constants { t, .. }: Constants) -> [f64; 4] {
    let mut e = black_box([1.0, -1.0, -1.0, -1.0]);
    for _ in 0..count {
        e[0] = (e[0] + e[1] + e[2] - e[3]) * t;
        e[1] = (e[0] + e[1] - e[2] + e[3]) * t;
        e[2] = (e[0] - e[1] + e[2] + e[3]) * t;
        e[3] = (-e[0] + e[1] + e[2] + e[3]) * t;
    }
    e
}

/// Module 3. Six repetitions of the same sums, in a procedure with the array as argument.
fn array_by_reference(count: u32, mut e: [f64; 4], constants: Constants) -> [f64; 4] {
    for _ in 0..count {
        sums(&mut e, constants);
    }
    e
}

#[inline(never)]
fn sums(e: &mut [f64; 4], Constants { t, t2, .. }: Constants) {
    for _ in 0..6 {
        e[0] = (e[0] + e[1] + e[2] - e[3]) * t;
        e[1] = (e[0] + e[1] - e[2] + e[3]) * t;
        e[2] = (e[0] - e[1] + e[2] + e[3]) * t;
        e[3] = (-e[0] + e[1] + e[2] + e[3]) / t2;
    }
}

/// Module 4. Three conditional assignments per turn. `black_box` keeps the compiler from precomputing them.
fn branches(count: u32) -> i32 {
    let mut j = 1;
    for _ in 0..count {
        j = if black_box(j) == 1 { 2 } else { 3 };
        j = i32::from(black_box(j) <= 2);
        j = i32::from(black_box(j) < 1);
    }
    j
}

/// Module 6. Integer arithmetic. Two of the integers are also indexes of the results in the array.
fn integer_arithmetic(count: u32) -> ([i32; 3], [f64; 2]) {
    let [mut j, mut k, mut l] = black_box([1, 2, 3]);
    let mut e = [0.0; 4];
    for _ in 0..count {
        j = j * (k - j) * (l - k);
        k = l * k - (l - j) * k;
        l = (l - k) * (k + j);
        e[(l - 2) as usize] = f64::from(j + k + l);
        e[(k - 2) as usize] = f64::from(j * k * l);
    }
    ([j, k, l], [e[0], e[1]])
}

/// Module 7.
fn trigonometric(count: u32, Constants { t, t2, .. }: Constants) -> [f64; 2] {
    let [mut x, mut y] = black_box([0.5, 0.5]);
    let turn = |a: f64, x: f64, y: f64| t * (t2 * a.sin() * a.cos() / ((x + y).cos() + (x - y).cos() - 1.0)).atan();
    for _ in 0..count {
        x = turn(x, x, y);
        y = turn(y, x, y);
    }
    [x, y]
}

/// Module 8.
fn procedure_calls(count: u32, constants: Constants) -> f64 {
    let [x, y, mut z] = black_box([1.0, 1.0, 1.0]);
    for _ in 0..count {
        // Use a hidden location, because the compiler could merge calls that repeat the same result.
        procedure(x, y, black_box(&mut z), constants);
    }
    z
}

#[inline(never)]
fn procedure(x: f64, y: f64, z: &mut f64, Constants { t, t2, .. }: Constants) {
    let x = t * (x + y);
    let y = t * (x + y);
    *z = (x + y) / t2;
}

/// Module 9. A procedure without parameters moves elements of a shared array.
fn array_references(count: u32) -> [f64; 3] {
    let mut shared = Shared { e: [1.0, 2.0, 3.0], places: black_box([0, 1, 2]) };
    for _ in 0..count {
        shared.rotate();
    }
    shared.e
}

struct Shared {
    e: [f64; 3],
    places: [usize; 3],
}

impl Shared {
    #[inline(never)]
    fn rotate(&mut self) {
        let [j, k, l] = self.places;
        self.e[j] = self.e[k];
        self.e[k] = self.e[l];
        self.e[l] = self.e[j];
    }
}

/// Module 11.
fn standard_functions(count: u32, Constants { t1, .. }: Constants) -> f64 {
    let mut x: f64 = black_box(0.75);
    for _ in 0..count {
        x = (x.ln() / t1).exp().sqrt();
    }
    x
}

struct Float;

impl Kernel for Float {
    fn step(&mut self, _: &mut dyn Sink) -> Result<f64, KernelError> {
        black_box(modules(black_box(SCALE), black_box(CONSTANTS)));
        Ok(f64::from(SCALE * WHETSTONES))
    }
}

pub(crate) const ENTRY: Entry = Entry {
    name: "float",
    info: || KernelInfo {
        name: "float",
        resource: Resource::Cpu,
        summary: "floating-point arithmetic, branches and functions in Whetstone's mix",
        doing: "floating-point-computing",
        loses: None,
        unit: Unit::Whetstones,
        figure: Figure::Rate { label: "MWIPS", divisor: 1e6 },
        also: None,
        latency: Latency::Step("200,000 Whetstone instructions"),
        roles: Roles::Both,
        // See `integer`.
        settle: Settle { rise_ns: 1_000_000, release_ns: 1_000_000 },
        needs: Needs::NOTHING,
        warnings: &[],
        params: schema_for!(Params),
    },
    build: |params, _| {
        let Params {} = serde_json::from_value(params.clone().into())?;
        Ok(Box::new(Float))
    },
};

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::{environment, parsed, Latencies};

    /// The modules in decimal arithmetic of 60 digits, computed independently of this program (mpmath). At ten times the weights they
    /// match the four digits that were published with the original.
    fn expected(scale: u32) -> Results {
        let ten = scale == 10;
        let pick = |at_one: [f64; 4], at_ten: [f64; 4]| if ten { at_ten } else { at_one };
        let trigonometric = if ten { [0.490_407_316_159_045, 0.490_392_497_956_1] } else { [0.499_038_308_015_452, 0.499_023_156_485_284] };
        Results {
            array: pick(
                [-0.066_821_081_537_598_2, -0.466_271_301_090_726, -0.732_976_520_021_806, -1.132_391_660_928_52],
                [-0.068_342_198_629_952, -0.462_637_656_263_568, -0.729_718_387_843_69, -1.123_979_070_046_13],
            ),
            array_by_reference: pick(
                [-0.065_513_281_746_192, -0.464_692_208_322_084, -0.731_067_439_368_417, -1.130_271_621_529_31],
                [-0.055_336_452_591_791, -0.447_436_562_754_745, -0.710_973_389_285_18, -1.103_098_056_925_6],
            ),
            branch: i32::from(ten),
            integers: [1, 2, 3],
            array_by_integers: [6.0, 6.0],
            trigonometric,
            procedure: 0.999_937_500_625,
            references: [3.0, 2.0, 3.0],
            standard: if ten { 0.834_665_519_519_058 } else { 0.759_865_144_888_247 },
        }
    }

    fn numbers(results: &Results) -> Vec<f64> {
        let Results { array, array_by_reference, branch, integers, array_by_integers, trigonometric, procedure, references, standard } =
            results;
        let integers = integers.iter().copied().chain([*branch]).map(f64::from);
        [&array[..], array_by_reference, array_by_integers, trigonometric, references, &[*procedure, *standard]]
            .concat()
            .into_iter()
            .chain(integers)
            .collect()
    }

    #[test]
    fn every_module_matches_decimal_arithmetic() {
        for scale in [1, 10] {
            let (computed, expected) = (numbers(&modules(scale, CONSTANTS)), numbers(&expected(scale)));
            assert_eq!(computed.len(), expected.len());
            for (at, (computed, expected)) in computed.iter().zip(&expected).enumerate() {
                assert!((computed - expected).abs() < 1e-12, "scale {scale}, number {at}: {computed}, not {expected}");
            }
        }
    }

    #[test]
    #[allow(clippy::float_cmp, reason = "any difference at all is wrong")]
    fn no_module_is_skipped_at_its_weight() {
        // Each result differs from that of one turn fewer, except where the paper's module returns to its start.
        let all = modules(1, CONSTANTS);
        assert!(array_elements(11, CONSTANTS) != all.array);
        assert!(array_by_reference(13, all.array, CONSTANTS) != all.array_by_reference);
        assert_ne!(branches(344), all.branch);
        assert!(trigonometric(31, CONSTANTS) != all.trigonometric);
        assert!(array_references(615) != all.references);
        assert!((standard_functions(92, CONSTANTS) - all.standard).abs() > 1e-6);
        assert!((procedure_calls(0, CONSTANTS) - all.procedure).abs() > 1e-6);
    }

    #[test]
    fn a_step_counts_the_instructions_of_both_its_turns() {
        let mut kernel = (ENTRY.build)(&parsed("{}"), &environment()).expect("no parameters");
        let work = kernel.step(&mut Latencies::default()).expect("arithmetic does not fail");
        assert!((work - 200_000.0).abs() < 0.5);
        (ENTRY.build)(&parsed(r#"{"size": 1}"#), &environment()).map(drop).expect_err("it takes none");
    }
}
