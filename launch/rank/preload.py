"""What the forkserver imports before it serves: importing this module makes it the zygote."""

from launch.rank.zygote import warm_up

warm_up()
