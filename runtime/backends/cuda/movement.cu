// Copies between arrays whose innermost runs are whole packs of 16 bytes; `real` is float, whatever
// the arrays hold. A thread moves a pack. Outer axes: four, of which the last three have these lengths;
// the steps along them, from and to, are in packs.

extern "C" __global__ void move_packs(
    const real* from, real* to, i64 count, i64 run, i64 l1, i64 l2, i64 l3,
    i64 f0, i64 f1, i64 f2, i64 f3, i64 t0, i64 t1, i64 t2, i64 t3
) {
    const i64 i = thread_index();
    if (i >= count) return;
    const Divided in = divided(i, run), third = divided(in.whole, l3);
    const Divided second = divided(third.whole, l2), first = divided(second.whole, l1);
    const i64 at = first.whole * f0 + first.rest * f1 + second.rest * f2 + third.rest * f3;
    const i64 there = first.whole * t0 + first.rest * t1 + second.rest * t2 + third.rest * t3;
    ((Pack<real>*)to)[there + in.rest] = ((const Pack<real>*)from)[at + in.rest];
}
