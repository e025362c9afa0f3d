package RealTime;
# Loaded before a test of memcached: lets it wait where it would set the clock of memcached's debugging build.

use strict;
use warnings;
use lib 't/lib';
use MemcachedTest;

{
    no warnings 'redefine';
    *MemcachedTest::mem_move_time = sub { CORE::sleep($_[1]) };
}

1;
