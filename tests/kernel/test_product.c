/* The order of a product's tiles (kernel/product.h): each tile comes once, a pair's two blocks agree, and a lone tile
 * stands where it is said to. */
#include "kernel/product.h"
#include "tests/support/support.h"

enum { MOST_TILES = 70, MOST_COLUMNS = 9 };

static int numbers_of(product_rows rows, int columns) {
  const int pairs = rows.tiles / rows.cluster, lone = rows.tiles % rows.cluster;
  return pairs * columns + lone * ((columns + 1) / 2);
}

static void check_lone(product_rows rows, int columns, int number, product_place place) {
  if (rows.tiles < 2) return;
  if (rows.weaves) { /* directly behind the pairs of its columns */
    const product_place before = product_place_of(rows, columns, number - 1, 0);
    assert_int_equal(before.shared, PRODUCT_COLUMNS_SHARED);
    assert_int_equal(before.column, place.column + 1 < columns ? place.column + 1 : place.column);
    assert_int_equal(before.down, rows.tiles - 3);
  } else {
    assert_true(number >= rows.tiles / 2 * columns);
  }
}

static void check_order(product_rows rows, int columns) {
  unsigned char seen[MOST_TILES][MOST_COLUMNS] = {{0}};
  const int lone = rows.tiles % rows.cluster ? rows.tiles - 1 : -1;
  for (int number = 0; number < numbers_of(rows, columns); number++) {
    const product_place first = product_place_of(rows, columns, number, 0);
    assert_int_equal(first.shared == 0, rows.cluster == 1);
    assert_int_equal(first.shared == PRODUCT_ROWS_SHARED, first.down == lone);
    if (first.shared == PRODUCT_ROWS_SHARED) check_lone(rows, columns, number, first);
    for (int rank = 0; rank < rows.cluster; rank++) {
      const product_place place = product_place_of(rows, columns, number, rank);
      assert_int_equal(place.shared, first.shared);
      assert_int_equal(place.down, first.down + (first.shared == PRODUCT_COLUMNS_SHARED ? rank : 0));
      assert_int_equal(place.column, first.column + (first.shared == PRODUCT_ROWS_SHARED ? rank : 0));
      assert_true(place.down >= 0 && place.down < rows.tiles && place.column >= 0 && first.column < columns);
      if (place.column < columns) assert_int_equal(seen[place.down][place.column]++, 0);
    }
  }
  for (int down = 0; down < rows.tiles; down++)
    for (int column = 0; column < columns; column++) assert_int_equal(seen[down][column], 1);
}

static void test_each_tile_once(void **state) {
  (void)state;
  for (int tiles = 1; tiles <= MOST_TILES; tiles++)
    for (int columns = 1; columns <= MOST_COLUMNS; columns++) {
      check_order((product_rows){tiles, 1, 0}, columns);
      check_order((product_rows){tiles, 2, 0}, columns);
      check_order((product_rows){tiles, 2, 1}, columns);
    }
}

int main(void) {
  const struct CMUnitTest tests[] = {cmocka_unit_test(test_each_tile_once)};
  return cmocka_run_group_tests(tests, NULL, NULL);
}
