"""The forkserver's preload module: importing it turns the forkserver into the zygote."""

from launch.start.rank.zygote import warm_up

warm_up()
